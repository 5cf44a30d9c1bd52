package local

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// killTime bounds how long the ladder keeps killing processes that do not die, for example in an
// uninterruptible system call.
const killTime = 5 * time.Second

// family is a set of processes that are ended together.
type family interface {
	// members returns the running processes, without zombies.
	members() []proctree.Proc
	// kill sends SIGKILL to the members and, where the kernel can do that, to processes that are
	// being forked.
	kill(members []proctree.Proc)
}

// endProcesses walks the ladder: SIGTERM to every member, the grace period, then SIGKILL until no
// member is left. Closing hurry, which may be nil, cuts the grace period short.
func endProcesses(f family, grace time.Duration, hurry <-chan struct{}) primitives.TerminateReport {
	found := make(map[proctree.Identity]primitives.KilledProcess)
	note := func(members []proctree.Proc, forced bool) {
		for _, m := range members {
			found[m.Identity] = primitives.KilledProcess{PID: m.PID, Command: m.Name, Forced: forced}
		}
	}
	members := f.members()
	note(members, false)
	if grace > 0 && len(members) > 0 {
		for _, m := range members {
			_ = proctree.Signal(m.Identity, unix.SIGTERM)
			if m.Stopped {
				_ = proctree.Signal(m.Identity, unix.SIGCONT)
			}
		}
		members = untilEmpty(grace, hurry, f.members)
	}
	if len(members) > 0 {
		known := members
		members = untilEmpty(killTime, nil, func() []proctree.Proc {
			members := known
			if known = nil; members == nil {
				members = f.members()
			}
			if len(members) > 0 {
				note(members, true)
				f.kill(members)
			}
			return members
		})
	}
	var report primitives.TerminateReport
	for _, k := range found {
		report.Killed = append(report.Killed, k)
	}
	for _, m := range members {
		report.Survivors = append(report.Survivors, primitives.KilledProcess{PID: m.PID, Command: m.Name, Forced: true})
	}
	return report
}

// untilEmpty calls look at growing intervals until look returns no process, the time is over or
// hurry is closed. It returns look's last result.
func untilEmpty(most time.Duration, hurry <-chan struct{}, look func() []proctree.Proc) []proctree.Proc {
	end := time.NewTimer(most)
	defer end.Stop()
	pause := time.Millisecond / 2
	for {
		members := look()
		if len(members) == 0 {
			return nil
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
			pause = min(2*pause, 25*time.Millisecond)
		case <-hurry:
			next.Stop()
			return members
		case <-end.C:
			next.Stop()
			return members
		}
	}
}

// groupFamily is the family of the processes in a control group.
type groupFamily struct {
	path      string
	populated func() bool  // reports whether there are members; cheaper than listing
	end       func() error // kills all members
	inside    bool         // this program is a member
}

func newGroupFamily(path string) *groupFamily {
	return &groupFamily{
		path:      path,
		populated: func() bool { return cgroup.Populated(path) },
		end:       func() error { return cgroup.Kill(path) },
	}
}

func (g *groupFamily) members() []proctree.Proc {
	if !g.populated() {
		return nil
	}
	pids, err := cgroup.Pids(g.path)
	if err != nil {
		return nil
	}
	g.inside = slices.Contains(pids, os.Getpid())
	return running(proctree.Describe(pids))
}

func (g *groupFamily) kill(members []proctree.Proc) {
	// If this program runs inside the sandbox that it ends, the kernel would kill it too.
	if g.inside || g.end() != nil {
		killEach(members)
	}
}

// killEach kills the members except the calling process.
func killEach(members []proctree.Proc) {
	self := os.Getpid()
	for _, m := range members {
		if m.PID != self {
			_ = proctree.Signal(m.Identity, unix.SIGKILL)
		}
	}
}

// running returns procs without zombies and without the calling process.
func running(procs []proctree.Proc) []proctree.Proc {
	self := os.Getpid()
	kept := procs[:0]
	for _, p := range procs {
		if !p.Zombie && p.PID != self {
			kept = append(kept, p)
		}
	}
	return kept
}

// scanFamily finds its members in the process table: the processes that belongs accepts, those
// found before, and the descendants of both.
type scanFamily struct {
	belongs  func(proctree.Proc) bool
	known    map[proctree.Identity]bool
	fallback func() []proctree.Proc // used if Snapshot is not supported
}

func (f *scanFamily) members() []proctree.Proc {
	procs, err := proctree.Snapshot()
	if errors.Is(err, errors.ErrUnsupported) && f.fallback != nil {
		return f.fallback()
	}
	self := proctree.Self()
	found := proctree.Descendants(procs, func(p proctree.Proc) bool {
		return p.PID > 1 && p.Identity != self && (f.known[p.Identity] || f.belongs(p))
	})
	if f.known == nil {
		f.known = make(map[proctree.Identity]bool)
	}
	members := make([]proctree.Proc, 0, len(found))
	for id, p := range found {
		f.known[id] = true
		if !p.Zombie && id != self {
			members = append(members, p)
		}
	}
	return members
}

// carries reports whether the process was started with this value of the mark.
func carries(p proctree.Proc, mark, value string) bool {
	if p.Zombie || value == "" {
		return false
	}
	values, ok := proctree.Mark(p, mark)
	return ok && values[0] == value
}

func (f *scanFamily) kill(members []proctree.Proc) { killEach(members) }

// family returns the processes of one command.
func (p *process) family() family {
	if p.leaf != nil {
		return &groupFamily{path: p.leaf.Path(), populated: p.leaf.Populated, end: p.leaf.Kill}
	}
	leads := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.reaped // the kernel does not reuse the PID before
	}
	return &scanFamily{
		belongs: func(q proctree.Proc) bool {
			leader := q.PID == p.pid || q.SID == p.pid || q.PGID == p.pid
			return (leader && leads()) || carries(q, execMark, p.id)
		},
		fallback: func() []proctree.Proc {
			if !leads() {
				return nil
			}
			return processGroup(p.pid)
		},
	}
}

// processGroup represents a process group as one process with the PID -pid, for systems without a
// process table. It returns nil if the group has ended.
func processGroup(pid int) []proctree.Proc {
	if err := unix.Kill(-pid, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return nil
	}
	return []proctree.Proc{{Identity: proctree.Identity{PID: -pid}, PGID: pid}}
}
