package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// A durable command has a folder of its own, exec/<id> in the session's App. Its supervisor, a
// process that this program is not the parent of, starts the command with its output appended to
// two files, and records how the command ended. Handles read these files. If the supervisor has
// ended without a result the reason is ReasonLost.
const (
	commandFile = "command.json" // what to run: durableCommand
	startedFile = "started.json" // its processes, or why it did not start: durableStart
	exitFile    = "exit.json"    // how it ended: primitives.ExitStatus
	stdoutFile  = "stdout"
	stderrFile  = "stderr"
	execFolder  = "exec" // holds the folders of all durable commands
)

// durableCommand is what the supervisor needs to run a command.
type durableCommand struct {
	Sandbox string              `json:"sandbox"`
	Group   string              `json:"group,omitempty"` // the command's control group
	Path    string              `json:"path"`
	Args    []string            `json:"args"`
	Env     []string            `json:"env"`
	Dir     string              `json:"dir"`
	Cred    *syscall.Credential `json:"cred,omitempty"`
	Merge   bool                `json:"merge,omitempty"`
	// Expendable makes the kernel kill the command before its supervisor when memory runs out.
	Expendable bool          `json:"expendable,omitempty"`
	Timeout    time.Duration `json:"timeout,omitempty"`
	Grace      time.Duration `json:"grace,omitempty"`
}

// durableStart names the processes of a durable command, or says why it did not start.
type durableStart struct {
	Supervisor proctree.Identity `json:"supervisor"`
	Leader     proctree.Identity `json:"leader"`
	Boot       string            `json:"boot"`
	Error      string            `json:"error,omitempty"`
	Kinds      []string          `json:"kinds,omitempty"` // the sentinels that the error wraps
}

// checkRunner returns nil if durable commands are supported, else why they are not.
func checkRunner(path string) error {
	if path == "" {
		return fmt.Errorf("%w: Config.Runner names no program to supervise them", errors.ErrUnsupported)
	}
	fd, err := openPidfd(os.Getpid())
	if err != nil {
		return fmt.Errorf("%w: the system has no process descriptors: %w", errors.ErrUnsupported, err)
	}
	_ = unix.Close(fd)
	if err := unix.Access(path, unix.X_OK); err != nil {
		return fmt.Errorf("%w: Config.Runner %s: %w", errors.ErrUnsupported, path, err)
	}
	return nil
}

func (s *Sandbox) durableDir(id string) string { return filepath.Join(s.paths.App, execFolder, id) }

// startDurable starts the command under a supervisor. The caller holds s.mu for
// reading.
func (s *Sandbox) startDurable(ctx context.Context, cmd *primitives.Command) (*durable, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if !s.caps.Durable {
		return nil, checkRunner(s.st.Runner)
	}
	spec, err := s.specify(cmd)
	if err != nil {
		return nil, s.classifyLoss(err)
	}
	if err := s.probeDir(spec); err != nil {
		return nil, s.classifyLoss(err)
	}
	id := "d-" + newID()
	dir := s.durableDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, s.classifyLoss(files.NoSpace(err))
	}
	if err := files.NoSpace(s.supervise(ctx, id, dir, cmd, spec)); err != nil {
		return nil, errors.Join(err, files.RemoveTree(dir))
	}
	return s.openDurable(ctx, id, primitives.Offset{})
}

// supervise writes the command to its folder and starts its supervisor.
func (s *Sandbox) supervise(ctx context.Context, id, dir string, cmd *primitives.Command, spec *spawnSpec) error {
	order := durableCommand{
		Sandbox: s.id, Path: spec.path, Args: spec.args, Env: append(spec.env, execMark+"="+id), Dir: spec.dir,
		Cred: spec.cred, Merge: cmd.MergeStderr, Timeout: cmd.Timeout, Grace: cmd.GracePeriod(),
		Expendable: s.onlyServes(),
	}
	for _, name := range []string{stdoutFile, stderrFile} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			return err
		}
	}
	runner := &spawnSpec{
		path: s.st.Runner, args: []string{s.st.Runner, "supervise", dir}, dir: dir, session: true,
		// Not the command's own mark: ending the command must not end the supervisor.
		env: setVar(setVar(mergeEnv(s.env, nil), sandboxMark+"="+s.id), execMark+"=s-"+id),
	}
	if s.group != nil && !s.noGroup.Load() {
		leaf, err := s.group.Make(id)
		if err != nil {
			return err
		}
		defer leaf.Close()
		order.Group, runner.leaf = leaf.Path(), leaf
	}
	if err := writeJSON(filepath.Join(dir, commandFile), &order); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	runner.files = []uintptr{null.Fd(), null.Fd(), null.Fd()}
	pid, pidfd, err := spawn(runner)
	if err != nil {
		return fmt.Errorf("%w: start the supervisor %s: %w", primitives.ErrUnavailable, s.st.Runner, err)
	}
	if err := awaitChild(ctx, pid, pidfd); errors.Is(err, primitives.ErrNoSpace) {
		return fmt.Errorf("write down that the command runs: %w", err)
	} else if err != nil {
		return fmt.Errorf("%w: the supervisor %s: %w", primitives.ErrUnavailable, s.st.Runner, err)
	}
	var started durableStart
	if err := readJSON(filepath.Join(dir, startedFile), &started); err != nil {
		return fmt.Errorf("%w: the supervisor %s started nothing: %w", primitives.ErrUnavailable, s.st.Runner, err)
	}
	return started.err()
}

// awaitChild waits until the first stage of the supervisor has ended. It kills the first stage when
// ctx is done.
func awaitChild(ctx context.Context, pid, pidfd int) error {
	watch, err := watchExit(pid, pidfd)
	if err != nil {
		return err
	}
	defer watch.close()
	// The kernel does not reuse the PID before the process is reaped.
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-pid, unix.SIGKILL) })
	err = watch.wait()
	stopped := stop()
	ws, rerr := reap(pid)
	if err = errors.Join(err, rerr); err == nil && !stopped && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil && ws.ExitStatus() == superviseNoSpace {
		return primitives.ErrNoSpace
	}
	if err == nil && ws.ExitStatus() != 0 {
		err = fmt.Errorf("ended with status %d", ws.ExitStatus())
	}
	return err
}

// Reattach implements primitives.Reattacher.
func (s *Sandbox) Reattach(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
	end, err := s.begin("reattach", id)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := ctx.Err(); err != nil {
		return nil, s.fail("reattach", id, err)
	}
	if !s.caps.Durable {
		return nil, s.fail("reattach", id, checkRunner(s.st.Runner))
	}
	if !strings.HasPrefix(id, "d-") || strings.Contains(id, "/") {
		return nil, s.fail("reattach", id, fmt.Errorf("%w: this is not the ID of a durable command", fs.ErrNotExist))
	}
	p, err := s.openDurable(ctx, id, from)
	if err != nil {
		return nil, s.fail("reattach", id, err)
	}
	return p, nil
}

// durable is a handle of a durable command.
type durable struct {
	sb      *Sandbox
	id, dir string
	start   durableStart
	out     *tail
	err     *tail
	watch   *exitWatch // of the supervisor; nil if it has ended
	bell    *bell
	stopCtx func() bool

	mu     sync.Mutex
	reason primitives.ExitReason // why the command ends, if the supervisor records no status

	done    chan struct{} // closed when status is known
	status  primitives.ExitStatus
	letGo   chan struct{} // closed by Close
	joined  chan struct{} // closed when the goroutines have ended
	closing sync.Once
}

// openDurable returns a handle of an existing durable command.
func (s *Sandbox) openDurable(ctx context.Context, id string, from primitives.Offset) (_ *durable, err error) {
	d := &durable{
		sb: s, id: id, dir: s.durableDir(id),
		done: make(chan struct{}), letGo: make(chan struct{}), joined: make(chan struct{}),
	}
	if err := readJSON(filepath.Join(d.dir, startedFile), &d.start); err != nil {
		return nil, err
	}
	if d.out, err = d.openTail(stdoutFile, from.Stdout, from.NoFollow); err != nil {
		return nil, err
	}
	if d.err, err = d.openTail(stderrFile, from.Stderr, from.NoFollow); err != nil {
		return nil, errors.Join(err, d.out.Close())
	}
	if d.watch, err = d.watchSupervisor(); err != nil {
		return nil, errors.Join(err, d.out.Close(), d.err.Close())
	}
	d.bell = newBell(d.dir)
	s.procsMu.Lock()
	s.durables[d] = struct{}{}
	s.procsMu.Unlock()
	d.stopCtx = context.AfterFunc(ctx, func() { _ = d.Close() })
	go d.await()
	return d, nil
}

// watchSupervisor returns a watch of the supervisor, or nil if that has ended.
func (d *durable) watchSupervisor() (*exitWatch, error) {
	if d.start.Boot != proctree.BootID() {
		return nil, nil
	}
	fd, err := openPidfd(d.start.Supervisor.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !proctree.Alive(d.start.Supervisor) { // check after opening fd, which pins the process
		return nil, unix.Close(fd)
	}
	return watchExit(d.start.Supervisor.PID, fd)
}

// await waits for the supervisor and closes done when it has ended. It closes joined in any case.
func (d *durable) await() {
	defer close(d.joined)
	defer d.bell.close()
	if d.watch != nil {
		err := d.watch.wait()
		d.watch.close()
		select {
		case <-d.letGo:
			if err != nil {
				return
			}
		default:
		}
	}
	if err := readJSON(filepath.Join(d.dir, exitFile), &d.status); err != nil {
		d.status = primitives.ExitStatus{Code: -1, Reason: primitives.ReasonLost}
		d.mu.Lock()
		if d.reason == "" && d.sb.isEnding() {
			d.reason = primitives.ReasonCancelled
		}
		if d.reason != "" {
			d.status = primitives.ExitStatus{Code: 128 + int(unix.SIGKILL), Signal: primitives.SIGKILL, Reason: d.reason}
		}
		d.mu.Unlock()
	}
	close(d.done)
}

// setReason sets why the command ends, in case its supervisor can no longer record that.
func (d *durable) setReason(reason primitives.ExitReason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reason = reason
}

func (d *durable) ID() string            { return d.id }
func (d *durable) Stdin() io.WriteCloser { return &input{backend: d.sb.backend} }
func (d *durable) Stdout() io.ReadCloser { return d.out }
func (d *durable) Stderr() io.ReadCloser { return d.err }

func (d *durable) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	select {
	case <-d.done:
		return d.status, nil
	default:
	}
	select {
	case <-d.done:
		return d.status, nil
	case <-d.joined:
		select {
		case <-d.done:
			return d.status, nil
		default:
		}
		return primitives.ExitStatus{}, d.sb.fail("wait", d.id, fmt.Errorf("%w: the handle was closed; the command may go on", primitives.ErrUnavailable))
	case <-ctx.Done():
		return primitives.ExitStatus{}, d.sb.fail("wait", d.id, ctx.Err())
	}
}

func (d *durable) Signal(ctx context.Context, sig primitives.Signal) error {
	if err := ctx.Err(); err != nil {
		return d.sb.fail("signal", d.id, err)
	}
	number, err := signalNumber(sig)
	if err != nil {
		return d.sb.fail("signal", d.id, err)
	}
	select {
	case <-d.done:
		return d.sb.fail("signal", d.id, os.ErrProcessDone)
	default:
	}
	return d.sb.fail("signal", d.id, signalGroup(d.start.Leader, number))
}

func (d *durable) Resize(context.Context, primitives.TerminalSize) error {
	return d.sb.fail("resize", d.id, errors.ErrUnsupported)
}

// Close closes the handle. The command keeps running.
func (d *durable) Close() error {
	d.closing.Do(func() {
		close(d.letGo)
		d.stopCtx()
		if d.watch != nil {
			d.watch.close()
		}
		_ = d.out.Close()
		_ = d.err.Close()
		<-d.joined
		d.sb.procsMu.Lock()
		delete(d.sb.durables, d)
		d.sb.procsMu.Unlock()
	})
	<-d.joined
	return nil
}
