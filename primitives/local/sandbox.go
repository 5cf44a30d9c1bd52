package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// Sandbox is a handle of a local sandbox. It implements
// primitives.EnvironmentPrimitive and the optional interfaces beside it. Make
// one with [New] or [Attach].
type Sandbox struct {
	id      string
	backend string
	st      *state
	paths   primitives.Paths
	caps    primitives.Capabilities
	env     []string
	cred    *syscall.Credential
	hasTTY  bool
	files   *files.FS
	life    *os.File
	oom     oomWatch
	reaper  *reaper // nil without Config.ReapOrphans

	group    *cgroup.Group // nil without control groups
	noGroup  atomic.Bool   // the kernel refused to start processes in it
	execName string        // prefix of the IDs of this handle's commands
	execs    atomic.Int64
	grown    atomic.Int32 // pipes with a large buffer

	// mu is held for reading while a call does something that Terminate and
	// Close must not overtake.
	mu         sync.RWMutex
	terminated bool
	closed     bool
	down       chan struct{} // closed when either becomes true

	procsMu  sync.Mutex
	procs    map[*process]struct{}
	durables map[*durable]struct{}

	terminating sync.Mutex
	forwards    forwards
}

var _ interface {
	primitives.EnvironmentPrimitive
	primitives.Runner
	primitives.BatchWriter
	primitives.Packer
	primitives.Unpacker
	primitives.Reattacher
	primitives.Forker
	primitives.UsageReader
	primitives.Forwarder
} = (*Sandbox)(nil)

// open returns a handle of a sandbox whose folders exist. If a GC is removing the sandbox, open
// waits for that until ctx is done.
func open(ctx context.Context, st *state, who identity, reapOrphans bool) (*Sandbox, error) {
	life, err := openRegular(st.file(lifeFile), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := flockShared(ctx, life); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	if err := aloneSince(life, neverAlone); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	return openWith(st, who, reapOrphans, life)
}

// openWith returns a handle that owns the open life file.
func openWith(st *state, who identity, reapOrphans bool, life *os.File) (*Sandbox, error) {
	s := &Sandbox{
		id: st.ID, backend: backend, st: st, paths: st.paths(), cred: who.cred, hasTTY: hasTerminal(),
		life: life, down: make(chan struct{}), procs: make(map[*process]struct{}), durables: make(map[*durable]struct{}),
	}
	s.execName = "x-" + proctree.Self().String() + "-" + newID()[:6]
	name := who.name
	if name == "" {
		name = ownName()
	}
	s.oom.start()
	s.env = baseEnv(hostEnv(), s.paths, name, st.Env)
	if err := s.checkAlive(); err != nil {
		return nil, errors.Join(err, s.life.Close())
	}
	var err error
	cfg := files.Config{Backend: s.backend, Paths: s.paths, UID: -1, GID: -1, Gone: s.checkAlive}
	if who.cred != nil {
		cfg.UID, cfg.GID = int(who.cred.Uid), int(who.cred.Gid)
	}
	if s.files, err = files.New(cfg); err != nil {
		return nil, errors.Join(err, s.life.Close())
	}
	if st.Group != "" {
		if s.group, err = cgroup.Open(st.Group, s.execName); err != nil {
			st.NoGroup = err.Error()
		}
	}
	s.caps = s.findCapabilities()
	if reapOrphans {
		if err := s.startReaper(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func (s *Sandbox) findCapabilities() primitives.Capabilities {
	c := primitives.Capabilities{
		OS: runtime.GOOS, Isolation: primitives.IsolationNone, Arch: runtime.GOARCH,
		Users: maySwitchUser(), TreeKill: primitives.TreeKillSweep, Fork: true, Usage: true, Forward: true,
	}
	var notes []string
	switch {
	case s.group != nil:
		c.TreeKill = primitives.TreeKillCgroup
	case runtime.GOOS != "linux":
		c.TreeKill = primitives.TreeKillGroup
	default:
		notes = append(notes, "no control group: "+s.st.NoGroup)
	}
	if err := checkRunner(s.st.Runner); err != nil {
		notes = append(notes, fmt.Sprintf("no durable commands: %v", err))
	} else {
		c.Durable = true
	}
	if !c.Users {
		notes = append(notes, "commands run as other users only under root with the capabilities SETUID and SETGID")
	}
	c.Note = strings.Join(notes, "; ")
	return c
}

// ownName returns the name of this program's user, or the number of a user without a name.
func ownName() string {
	uid := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return uid
}

// ID implements primitives.EnvironmentPrimitive.
func (s *Sandbox) ID() string { return s.id }

// Paths implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Paths() primitives.Paths { return s.paths }

// Capabilities implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Capabilities() primitives.Capabilities { return s.caps }

// fail adds the operation and the target to an error.
func (s *Sandbox) fail(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: s.backend, Target: target, Err: err}
}

// begin admits a call. Terminate and Close wait until the caller calls end.
func (s *Sandbox) begin(op, target string) (end func(), err error) {
	s.mu.RLock()
	if err := s.checkUsableLocked(); err != nil {
		s.mu.RUnlock()
		return nil, s.fail(op, target, err)
	}
	return s.mu.RUnlock, nil
}

// checkUsableLocked returns nil if calls are possible, else why they are not. The caller holds s.mu.
func (s *Sandbox) checkUsableLocked() error {
	switch {
	case s.terminated && s.closed:
		return fmt.Errorf("%w, and its handle closed: %w", primitives.ErrTerminated, primitives.ErrUnavailable)
	case s.terminated:
		return primitives.ErrTerminated
	case s.closed:
		return fmt.Errorf("%w: the handle was closed; attach to it again", primitives.ErrUnavailable)
	}
	return s.checkAlive()
}

// checkAlive returns nil if the sandbox lives. It checks the life file, which all handles share.
func (s *Sandbox) checkAlive() error {
	info, err := s.life.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
	case isEnded(info):
		return primitives.ErrTerminated
	case info.Sys().(*syscall.Stat_t).Nlink == 0:
		return fmt.Errorf("%w: its folder %s was removed", primitives.ErrUnavailable, s.paths.Session)
	}
	return nil
}

// isEnding reports whether a program terminates the sandbox, or has terminated it.
func (s *Sandbox) isEnding() bool {
	info, err := s.life.Stat()
	return err == nil && info.Size() > 0
}

// classifyLoss returns ErrUnavailable if err is due to the loss of the whole sandbox, else err.
func (s *Sandbox) classifyLoss(err error) error {
	if _, serr := os.Lstat(s.st.file(lifeFile)); errors.Is(serr, fs.ErrNotExist) && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: its folder %s is gone", primitives.ErrUnavailable, s.paths.Session)
	}
	return err
}

// Poll implements primitives.EnvironmentPrimitive. A local sandbox has no main
// process, so it is never primitives.StatusExited.
func (s *Sandbox) Poll(ctx context.Context) (primitives.State, error) {
	if err := ctx.Err(); err != nil {
		return primitives.State{}, s.fail("poll", "", err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return primitives.State{}, s.fail("poll", "", s.checkUsableLocked())
	}
	if s.terminated {
		return primitives.State{Status: primitives.StatusTerminated}, nil
	}
	err := s.checkAlive()
	switch {
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, nil
	case err != nil, s.classifyLoss(fs.ErrNotExist) != fs.ErrNotExist: //nolint:errorlint // identity: classifyLoss returns its argument or another error
		return primitives.State{Status: primitives.StatusLost}, nil
	}
	return primitives.State{Status: primitives.StatusRunning}, nil
}

// nextExecID returns a new command ID, unique within the sandbox.
func (s *Sandbox) nextExecID() string {
	return s.execName + "-" + strconv.FormatInt(s.execs.Add(1), 10)
}

// acquireLeaf returns the control group for a new command, or nil without control groups.
func (s *Sandbox) acquireLeaf() (*cgroup.Leaf, error) {
	if s.group == nil || s.noGroup.Load() {
		return nil, nil
	}
	return s.group.Acquire()
}

func (s *Sandbox) releaseLeaf(l *cgroup.Leaf) {
	if l != nil {
		s.group.Release(l)
	}
}

// RunnerPath returns the absolute path of a file of this machine, which the sandbox can reach. It
// returns "" if commands run as another user, who may not be able to.
func (s *Sandbox) RunnerPath(file string) string {
	if s.cred != nil {
		return ""
	}
	name, _ := filepath.Abs(file) // empty on error
	return name
}
