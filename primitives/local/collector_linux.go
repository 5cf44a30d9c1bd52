package local

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// orphanCollector is the host program's side of its collector process. That process runs the host
// program's executable again: it waits until the host program has died, from any cause, then ends
// and removes its orphans; see collection. One collector process serves all sandboxes of the
// program. Only [ReapOrphans] waits for it, and no command controls it.
type orphanCollector struct {
	mu       sync.Mutex
	socket   int // connected to the collector process's standard input; -1 without a process
	pid      int
	sessions map[string]int // open handles by session folder, until the sandbox is removed
}

// collectorName is the first argument of a collector process.
const collectorName = "agentenv-collector"

var (
	ownCollector = &orphanCollector{socket: -1, sessions: make(map[string]int)}
	// programStart is later than the creation of all orphans of earlier programs.
	programStart = time.Now()
)

// init turns this process into a collector process if start started it as one. So a host program
// needs no code and no other executable for its collector process.
func init() { //nolint:gochecknoinits // it must come before the main of any program
	if len(os.Args) == 3 && os.Args[0] == collectorName {
		syscall.Exit(collect(os.Args[1], os.Args[2]))
	}
}

// tell sends a message to the collector process, and starts the process if none runs. A nil
// collector does nothing. If the process cannot be started, or does not read, the collector process
// of another program collects this program's orphans.
func (c *orphanCollector) tell(kind byte, session string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch handles := c.sessions[session]; {
	case kind == sandboxGone:
		delete(c.sessions, session)
	case kind == handleOpened:
		c.sessions[session] = handles + 1
	case handles > 0:
		c.sessions[session] = handles - 1
	}
	if c.socket >= 0 && c.send(kind, session) == nil {
		return
	}
	c.stop()
	if c.start() != nil {
		return
	}
	for session, handles := range c.sessions {
		_ = c.send(handleOpened, session)
		if handles == 0 {
			_ = c.send(handleClosed, session)
		}
	}
}

// send returns an error if the collector process has ended.
func (c *orphanCollector) send(kind byte, session string) error {
	err := ignoreEINTR(func() error {
		return unix.Send(c.socket, append([]byte{kind}, session...), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
	if errors.Is(err, unix.EAGAIN) {
		return nil // the queue is full: another program has stopped the process
	}
	return err
}

// start starts the collector process.
func (c *orphanCollector) start() error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := descriptors{ends[1]}
	defer func() { theirs.close() }()
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		theirs = append(theirs, null)
		var pidfd int
		c.pid, pidfd, err = spawn(&spawnSpec{
			path: "/proc/self/exe",
			args: []string{collectorName, proctree.Self().String(), strconv.FormatInt(programStart.UnixNano(), 36)},
			env:  collectorEnv(os.Environ()), dir: "/", session: true,
			files: []uintptr{uintptr(ends[1]), uintptr(null), uintptr(null)},
		})
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
	}
	if err != nil {
		_ = unix.Close(ends[0])
		return err
	}
	c.socket = ends[0]
	return nil
}

// stop closes the socket of a collector process that has ended, and reaps the process.
func (c *orphanCollector) stop() {
	if c.socket >= 0 {
		_ = unix.Close(c.socket)
		c.socket = -1
		_, _ = unix.Wait4(c.pid, nil, unix.WNOHANG, nil)
	}
}

// collectorEnv returns the environment of the collector process. It omits every variable that may
// be a secret. It keeps the marks of a sandbox that the host program itself runs in, and the
// variables of the dynamic loader.
func collectorEnv(environ []string) []string {
	var env []string
	for _, e := range environ {
		if hasKey(e, sandboxMark) || hasKey(e, execMark) || strings.HasPrefix(e, "LD_") {
			env = append(env, e)
		}
	}
	return env
}
