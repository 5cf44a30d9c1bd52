package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// secondStage is the variable that marks the second stage, which is the supervisor. The first stage
// only starts the second one, so that init becomes its parent.
const secondStage = "AGENTENV_SUPERVISOR"

// Supervise runs the durable command that a sandbox has prepared in dir, and returns the exit code
// of the program that was called with the arguments "supervise" and dir; see Config.Runner. That
// program must do nothing else. Supervise ends the command when ctx is done or the program gets
// SIGTERM or SIGINT. It writes errors to dir, where the sandbox finds them, and prints nothing.
func Supervise(ctx context.Context, dir string) int {
	if os.Getenv(secondStage) == "" {
		code, err := detach()
		if err != nil {
			return 1
		}
		return code
	}
	_ = os.Unsetenv(secondStage)
	// The first stage waits until this descriptor is closed.
	syscall.CloseOnExec(3)
	ready := os.NewFile(3, "ready")
	// The command must die with this process. The kernel means by that the thread that started the
	// command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // caught, so that the command does not inherit SIG_IGN
	defer signal.Stop(hangup)

	p, record, err := startSupervised(ctx, dir)
	if err != nil {
		if errors.Is(writeJSON(filepath.Join(dir, startedFile), newStartError(files.NoSpace(err))), unix.ENOSPC) {
			_, _ = ready.WriteString("no space")
		}
		return 1 // exiting closes ready
	}
	if ready.Close() != nil {
		return 1
	}
	if record.finish(ctx, p) != nil {
		return 1
	}
	return 0
}

// record keeps the output and the exit status of a command.
type record struct {
	status *os.File // gets the name exitFile; its space was taken before the command could fill the disk
	drains sync.WaitGroup
	lost   atomic.Pointer[primitives.ExitReason] // why output was not kept
}

// statusSize is how many bytes are taken for the exit status.
const statusSize = 4096

// openRecord takes the space for the exit status.
func openRecord(dir string) (*record, error) {
	f, err := os.CreateTemp(dir, "."+exitFile+"-*")
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(bytes.Repeat([]byte(" "), statusSize)); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return &record{status: f}, nil
}

// keep copies output to its file. If that fails the command ends: nobody could read how it goes on.
func (r *record) keep(p *process, s *spool, o *output) {
	r.drains.Go(func() {
		err := s.take(o)
		if err == nil {
			return
		}
		reason := primitives.ReasonLost
		if errors.Is(files.NoSpace(err), primitives.ErrNoSpace) {
			reason = primitives.ReasonNoSpace
		}
		r.lost.Store(&reason)
		p.end(reason)
	})
}

// finish waits for the command and writes down how it ended. Readers stop at the end of the output
// when they find the status.
func (r *record) finish(ctx context.Context, p *process) error {
	status, err := p.Wait(context.WithoutCancel(ctx))
	err = errors.Join(err, p.endOutput(&r.drains))
	if lost := r.lost.Load(); lost != nil {
		status.Reason = *lost
	}
	data, jerr := json.Marshal(status)
	if err = errors.Join(err, jerr); err == nil {
		_, err = r.status.WriteAt(data, 0) // the spaces behind it are valid JSON
	}
	if err = errors.Join(err, r.status.Close()); err != nil {
		return err
	}
	return os.Rename(r.status.Name(), filepath.Join(filepath.Dir(r.status.Name()), exitFile))
}

// superviseNoSpace is the exit code of the first stage if the disk is too full for the second stage
// to record its error.
const superviseNoSpace = 28

// detach starts this program again as the second stage, in a session of its own. It returns the
// exit code after the second stage has started the command, or failed to.
func detach() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cmd := exec.Command(self, os.Args[1:]...) //nolint:noctx // it must outlive this program
	cmd.Env = append(os.Environ(), secondStage+"=1")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = errors.Join(cmd.Start(), w.Close())
	if err != nil {
		return 0, err
	}
	said, err := io.ReadAll(r)
	if len(said) > 0 {
		return superviseNoSpace, err
	}
	return 0, err
}

// startSupervised starts the command, whose output goes to the record, and writes down that it runs.
func startSupervised(ctx context.Context, dir string) (*process, *record, error) {
	var order durableCommand
	if err := readJSON(filepath.Join(dir, commandFile), &order); err != nil {
		return nil, nil, err
	}
	s := &Sandbox{id: order.Sandbox, backend: backend, procs: make(map[*process]struct{}), down: make(chan struct{})}
	s.oom.start()
	// The life file shows that the sandbox ends. Without it only the signal is known.
	s.life, _ = os.Open(filepath.Join(dir, "..", "..", lifeFile))
	if order.Group != "" {
		// A group below the supervisor's: ending the command must not end the supervisor.
		group, err := cgroup.Open(order.Group, "run")
		if err != nil {
			return nil, nil, err
		}
		s.group = group
	}
	spec := &spawnSpec{
		path: order.Path, args: order.Args, env: order.Env, dir: order.Dir, cred: order.Cred,
		deathSignal: syscall.SIGKILL, expendable: order.Expendable,
	}
	out, errOut, err := openSpools(dir)
	if err != nil {
		return nil, nil, err
	}
	kept, err := openRecord(dir)
	if err != nil {
		return nil, nil, err
	}
	c := &child{id: filepath.Base(dir), stdin: -1, stdout: -1, stderr: -1, backend: backend}
	theirs, err := c.openStreams(&primitives.Command{MergeStderr: order.Merge}, outputFiles{}, spec)
	defer theirs.close()
	if err != nil {
		return nil, nil, err
	}
	if c.leaf, err = s.acquireLeaf(); err != nil {
		return nil, nil, err
	}
	spec.leaf = c.leaf
	if c.pid, c.pidfd, err = spawn(spec); err != nil {
		return nil, nil, s.explain(spec, err)
	}
	leader, err := proctree.Stat(c.pid)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.adopt(ctx, c, &primitives.Command{Timeout: order.Timeout, Grace: graceOf(order)}, 0)
	if err != nil {
		return nil, nil, err
	}
	kept.keep(p, out, p.out)
	kept.keep(p, errOut, p.err)
	start := durableStart{Supervisor: proctree.Self(), Leader: leader.Identity, Boot: proctree.BootID()}
	if err := writeJSON(filepath.Join(dir, startedFile), start); err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return p, kept, nil
}

// graceOf returns the Command.Grace that means the effective grace period.
func graceOf(order durableCommand) time.Duration {
	if order.Grace == 0 {
		return -1
	}
	return order.Grace
}

// sentinels returns the errors that keep their identity on the way from the supervisor to the
// sandbox.
func sentinels() map[string]error {
	return map[string]error{
		"command_not_found": primitives.ErrCommandNotFound,
		"working_dir":       primitives.ErrWorkingDir,
		"not_directory":     primitives.ErrNotDirectory,
		"is_directory":      primitives.ErrIsDirectory,
		"limit":             primitives.ErrLimit,
		"no_space":          primitives.ErrNoSpace,
		"not_exist":         fs.ErrNotExist,
		"permission":        fs.ErrPermission,
		"invalid":           fs.ErrInvalid,
	}
}

func newStartError(err error) durableStart {
	start := durableStart{Error: err.Error()}
	for kind, sentinel := range sentinels() {
		if errors.Is(err, sentinel) {
			start.Kinds = append(start.Kinds, kind)
		}
	}
	return start
}

// err returns the error that the supervisor recorded, or nil if the command runs.
func (d durableStart) err() error {
	if d.Error == "" {
		return nil
	}
	e := &startError{text: d.Error}
	for _, kind := range d.Kinds {
		if sentinel, ok := sentinels()[kind]; ok {
			e.kinds = append(e.kinds, sentinel)
		}
	}
	return e
}

// startError is an error of the supervisor, read back.
type startError struct {
	text  string
	kinds []error
}

func (e *startError) Error() string   { return e.text }
func (e *startError) Unwrap() []error { return e.kinds }
