package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// collection is the state of a collector process.
type collection struct {
	host     proctree.Identity
	sessions map[string]int // open handles of the host program by session folder
	roots    map[string]bool
	since    time.Time // the host program's start
	work     sync.WaitGroup
	grace    chan struct{} // gets a value while an orphan is in its grace period
}

// collect is the main function of a collector process. It returns the exit code.
func collect(host, since string) int {
	id, err := proctree.ParseIdentity(host)
	nanos, terr := strconv.ParseInt(since, 36, 64)
	if errors.Join(err, terr) != nil {
		return 2
	}
	_ = os.Setenv("PATH", defaultPath)
	_ = os.WriteFile("/proc/self/comm", []byte(collectorName), 0) // the name that ps shows
	c := collection{host: id, since: time.Unix(0, nanos), sessions: make(map[string]int), roots: make(map[string]bool), grace: make(chan struct{}, 1)}
	c.listen()
	if c.idle() {
		return 0 // a host program that still runs reaps this one
	}
	_ = unix.Send(0, []byte{0}, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) // it need not wait
	awaitEnd(id)
	c.collect(c.sessions, true)
	c.work.Wait()
	return 0
}

// idle reports whether nothing is to be done when the host program ends: it has closed its handles,
// and its own sandboxes are gone or kept. idle waits for the work in progress, but for no grace period.
func (c *collection) idle() bool {
	for session, handles := range c.sessions {
		if st := (&state{Session: session}); handles > 0 || st.load() == nil && !st.Keep && st.Owner == c.host {
			return false
		}
	}
	done := make(chan struct{})
	go func() { c.work.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-c.grace:
		return false
	}
}

// listen handles messages until the host program closes its end of the socket, or has sent its last
// message. The kernel closes it when the host program dies.
func (c *collection) listen() {
	message := make([]byte, unix.PathMax+2)
	for {
		var n int
		err := ignoreEINTR(func() (err error) { n, err = unix.Read(0, message); return err })
		if err != nil || n == 0 {
			return
		}
		c.note(message[0], string(message[1:n]))
	}
}

func (c *collection) note(kind byte, session string) {
	handles := c.sessions[session]
	switch {
	case kind == sandboxGone:
		delete(c.sessions, session)
	case kind == handleOpened:
		c.sessions[session] = handles + 1
	case handles > 0:
		c.sessions[session] = handles - 1
		c.work.Go(func() { c.endOrphan(session) })
	}
	if root := filepath.Dir(session); !c.roots[root] {
		c.roots[root] = true
		c.work.Go(func() { c.collect(c.orphans(root), false) })
	}
}

// orphans returns the sandboxes below root that are older than the host program. A sandbox among
// them is an orphan if its owner and the owner's collector process have died.
func (c *collection) orphans(root string) map[string]int {
	found := make(map[string]int)
	entries, _ := entriesOf(root, false) // the host program has checked root
	for _, e := range entries {
		st := state{Session: filepath.Join(root, e.Name())}
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		created := info.ModTime()
		if st.load() == nil {
			created = st.Created
		}
		if created.Before(c.since) {
			found[st.Session] = 1
		}
	}
	return found
}

// collect ends the commands that dead programs left running in the sandboxes with open handles, and
// ends the orphaned sandboxes. It removes the temporary files of one dead program only: of the host
// program if that has died, else of the sandbox's owner.
func (c *collection) collect(sessions map[string]int, hostDied bool) {
	var left []*state
	for session, handles := range sessions {
		if st := (&state{Session: session}); handles > 0 && st.load() == nil && st.complete() {
			left = append(left, st)
		}
		c.work.Go(func() { c.endOrphan(session) })
	}
	endAbandoned(left...)
	for _, st := range left {
		writer := c.host
		if !hostDied {
			writer = st.Owner
			if st.owner() != owner.Dead {
				continue
			}
		}
		removeTemps(st.Session, writer)
		if st.Workspace != "" {
			removeTemps(st.Workspace, writer)
		}
	}
}

// orphanTurn is the longest time between two checks of an orphan's grace period.
const orphanTurn = 5 * time.Second

// endOrphan ends a sandbox that is not kept and whose owner has died, after its grace period. If a
// program is attached endOrphan returns: the collector process of the last attached program ends
// the sandbox.
func (c *collection) endOrphan(session string) {
	for {
		_, wait, _ := clean(context.Background(), session, primitives.GCOptions{}) //nolint:forbidigo // a process of its own; another program tries again
		if wait <= 0 {
			return
		}
		select {
		case c.grace <- struct{}{}:
		default:
		}
		<-time.After(min(wait, orphanTurn))
	}
}

// removeTemps removes the files below dir that writer had not completed when it died.
func removeTemps(dir string, writer proctree.Identity) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !files.IsTempOf(e.Name(), writer) {
			return nil // continue with the other files
		}
		_ = root.RemoveAll(name)
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// awaitEnd returns when the process has died. The kernel closes its files a moment earlier.
func awaitEnd(id proctree.Identity) {
	if fd, err := openPidfd(id.PID); err == nil {
		w, err := watchExit(id.PID, fd)
		if err == nil && proctree.Alive(id) {
			err = w.wait()
		}
		if w != nil {
			w.close()
		}
		if err == nil {
			return
		}
	}
	untilEmpty(1<<62, nil, func() []proctree.Proc {
		if proctree.Alive(id) {
			return make([]proctree.Proc, 1)
		}
		return nil
	})
}
