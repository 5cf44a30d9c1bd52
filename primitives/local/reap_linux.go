package local

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// reaper reaps orphaned processes; see Config.ReapOrphans and [ReapOrphans].
type reaper struct {
	sb       *Sandbox // nil if the program has other children than those of one sandbox
	group    int      // this program's process group
	children chan os.Signal
	leaders  map[proctree.Identity]time.Time // zombies that lead a group, and when they were first seen
	stop     chan struct{}
	stopped  chan struct{}
}

// reapPause is the least time between two searches, so that the reaper does not search after each
// command. Orphans can wait.
const reapPause = time.Second

func (s *Sandbox) startReaper() (err error) {
	s.reaper, err = newReaper(s)
	return err
}

// waiterTimeout is how long a program may take to wait for a child that leads its process group.
// One that is a zombie for longer is an orphan: the program waits for its own at once.
const waiterTimeout = 2 * time.Second

func (r *reaper) run() {
	defer close(r.stopped)
	defer signal.Stop(r.children)
	for {
		var again <-chan time.Time
		if len(r.leaders) > 0 {
			again = time.After(waiterTimeout)
		}
		select {
		case <-r.children:
		case <-again:
		case <-r.stop:
			r.reap()
			return
		}
		// Stop the signals during the pause: each one wakes threads besides the one that waits for
		// a command.
		signal.Stop(r.children)
		pause := time.NewTimer(reapPause)
		select {
		case <-pause.C:
		case <-r.stop:
		}
		pause.Stop()
		signal.Notify(r.children, syscall.SIGCHLD) // before reap looks, or it could miss a child
		r.reap()
	}
}

// adopted reports whether the process became a child of this program when its parent died. Children
// that this program started itself are in its own process group, or are commands.
func (r *reaper) adopted(p proctree.Proc) bool {
	return r != nil && p.PPID == os.Getpid() && p.PGID != r.group
}

func (r *reaper) reap() {
	procs, err := proctree.Snapshot()
	if err != nil {
		return
	}
	var dead []int
	leaders := map[proctree.Identity]time.Time{}
	for _, p := range procs {
		switch {
		case !p.Zombie || !r.adopted(p):
			continue
		case r.sb == nil && p.PGID == p.PID: // it may be one that this program waits for
			first, seen := r.leaders[p.Identity]
			if !seen {
				first = time.Now()
			}
			if time.Since(first) < waiterTimeout {
				leaders[p.Identity] = first
				continue
			}
		}
		dead = append(dead, p.PID)
	}
	r.leaders = leaders
	if r.sb == nil {
		for _, pid := range dead {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		return
	}
	if len(dead) == 0 {
		return
	}
	// The lock excludes running calls, so every child that is not in the list of commands is an
	// orphan.
	r.sb.mu.Lock()
	defer r.sb.mu.Unlock()
	commands, _ := r.sb.processes()
	own := make(map[int]bool, len(commands))
	for p := range commands {
		own[p.pid] = true
	}
	for _, pid := range dead {
		if !own[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

func (r *reaper) close() {
	if r != nil {
		close(r.stop)
		<-r.stopped
	}
}
