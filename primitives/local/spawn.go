package local

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// spawnSpec describes a process to start.
type spawnSpec struct {
	path        string
	args, env   []string
	dir         string
	files       []uintptr
	cred        *syscall.Credential
	session     bool // start a session, else only a process group
	tty         bool
	leaf        *cgroup.Leaf
	deathSignal syscall.Signal // sent when the starting thread ends; Linux only
	expendable  bool           // the kernel kills it before this program when memory runs out
}

// child is a started process whose streams are not served yet. A missing descriptor
// is -1.
type child struct {
	id                    string
	pid, pidfd            int
	stdin, stdout, stderr int
	tty                   *os.File
	leaf                  *cgroup.Leaf
	backend               string
}

// closeStreams closes the descriptors that the child still owns.
func (c *child) closeStreams() {
	for _, fd := range []*int{&c.stdin, &c.stdout, &c.stderr} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	if c.tty != nil {
		_ = c.tty.Close()
		c.tty = nil
	}
}

// start starts the command. The caller holds s.mu for reading.
func (s *Sandbox) start(cmd *primitives.Command, out outputFiles) (*child, error) {
	spec, err := s.specify(cmd)
	if err != nil {
		return nil, err
	}
	c := &child{id: s.nextExecID(), stdin: -1, stdout: -1, stderr: -1, backend: s.backend}
	spec.env = append(spec.env, execMark+"="+c.id)
	spec.session = s.hasTTY
	spec.expendable = s.onlyServes()
	theirs, err := c.openStreams(cmd, out, spec)
	defer theirs.close()
	if err != nil {
		c.closeStreams()
		return nil, err
	}
	if c.leaf, err = s.acquireLeaf(); err != nil {
		c.closeStreams()
		return nil, err
	}
	spec.leaf = c.leaf
	c.pid, c.pidfd, err = spawn(spec)
	if err != nil && c.leaf != nil && refusesGroup(err) {
		err = s.withoutGroup(c, spec, err)
	}
	if err != nil {
		s.releaseLeaf(c.leaf)
		c.closeStreams()
		return nil, s.classifyLoss(s.explain(spec, err))
	}
	return c, nil
}

// refusesGroup reports whether the error may come from starting a process directly in a control
// group, which a seccomp filter can forbid.
func refusesGroup(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EBUSY, unix.EOPNOTSUPP, unix.ENODEV, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// withoutGroup starts the process outside of the control group. If that works the sandbox uses no
// control group from now on, and finds its processes by their marks.
func (s *Sandbox) withoutGroup(c *child, spec *spawnSpec, first error) error {
	spec.leaf = nil
	pid, pidfd, err := spawn(spec)
	if err != nil {
		return first
	}
	s.noGroup.Store(true)
	s.releaseLeaf(c.leaf)
	c.leaf, c.pid, c.pidfd = nil, pid, pidfd
	return nil
}

// spawn starts the process. It retries for a short time while the program is open for writing: a
// fork elsewhere in this program can hold a descriptor of a file that was just written.
func spawn(spec *spawnSpec) (pid, pidfd int, err error) {
	for delay := time.Millisecond; ; delay *= 2 {
		if err := closeOnExec(); err != nil {
			return -1, -1, fmt.Errorf("keep this program's descriptors from the command: %w", err)
		}
		pid, pidfd, err = forkExec(spec)
		if err == nil && spec.expendable {
			offerToOOM(pid)
		}
		if !errors.Is(err, syscall.ETXTBSY) || delay > time.Second {
			return pid, pidfd, err
		}
		<-time.After(delay)
	}
}

// closeEachOnExec marks the descriptors of this program above standard error as close-on-exec, one
// by one.
func closeEachOnExec() error {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if fd > 2 {
			unix.CloseOnExec(fd) // harmless if another file has got this number meanwhile
		}
	}
	return nil
}

// descriptors are the child's ends of its streams. The caller must close them after the child has
// inherited them.
type descriptors []int

func (d descriptors) close() {
	for _, fd := range d {
		_ = unix.Close(fd)
	}
}

// openStreams opens the streams of the command and fills spec.files. It returns the child's ends,
// also with an error.
func (c *child) openStreams(cmd *primitives.Command, to outputFiles, spec *spawnSpec) (theirs descriptors, err error) {
	if cmd.TTY != nil {
		return c.openTTY(*cmd.TTY, spec)
	}
	theirs = make(descriptors, 0, 3)
	var in, out, errOut int
	if cmd.Stdin {
		in, c.stdin, err = newPipe()
	} else {
		in, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return theirs, err
	}
	theirs = append(theirs, in)
	if to.stdout != nil {
		spec.files = []uintptr{uintptr(in), to.stdout.Fd(), to.stderr.Fd()}
		return theirs, nil
	}
	if c.stdout, out, err = newPipe(); err != nil {
		return theirs, err
	}
	theirs = append(theirs, out)
	errOut = out
	if !cmd.MergeStderr {
		if c.stderr, errOut, err = newPipe(); err != nil {
			return theirs, err
		}
		theirs = append(theirs, errOut)
	}
	spec.files = []uintptr{uintptr(in), uintptr(out), uintptr(errOut)}
	return theirs, nil
}

// hasTerminal reports whether this program has a controlling terminal. Commands must not reach it,
// so they then get sessions of their own. Without a terminal they do not: Linux schedules processes
// by session, and on a busy machine a command in another session and the program that reads its
// output would wait for each other.
func hasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

func ignoreEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
