package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// Terminate implements primitives.EnvironmentPrimitive. The grace period is the longest one of the
// running commands.
func (s *Sandbox) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	s.terminating.Lock() // a second call waits for the first
	defer s.terminating.Unlock()
	s.mu.Lock()
	switch {
	case s.terminated:
		s.mu.Unlock()
		return primitives.TerminateReport{}, nil
	case s.closed:
		defer s.mu.Unlock()
		return primitives.TerminateReport{}, s.fail("terminate", s.id, s.checkUsableLocked())
	}
	elsewhere := errors.Is(s.checkAlive(), primitives.ErrTerminated)
	s.terminated = true
	close(s.down)
	// From here on no call starts a command: calls hold s.mu while they start one.
	procs, durables := s.processes()
	s.mu.Unlock()
	s.forwards.end()
	_ = s.files.Close() // interrupts writes; its error is always nil
	if elsewhere {
		s.release(procs, durables)
		return primitives.TerminateReport{}, nil
	}

	for d := range durables {
		d.setReason(primitives.ReasonCancelled)
	}
	_ = s.life.Truncate(lifeEnding) // on failure other handles do not learn why commands end
	report := endProcesses(s.family(procs), cancelAll(procs), ctx.Done())
	if len(report.Survivors) > 0 {
		// Keep the sandbox for inspection. Its handle is unusable.
		return report, s.fail("terminate", s.id, fmt.Errorf("%d processes cannot be ended; the kernel holds them", len(report.Survivors)))
	}
	s.release(procs, durables)
	return report, s.fail("terminate", s.id, s.remove())
}

// cancelAll sets ReasonCancelled on the running commands and returns their longest grace period. If
// none runs it returns the default, because descendants of ended commands may still run.
func cancelAll(procs map[*process]struct{}) time.Duration {
	grace := time.Duration(-1)
	for p := range procs {
		if p.running() {
			p.setReason(primitives.ReasonCancelled)
			grace = max(grace, p.grace)
		}
	}
	if grace < 0 {
		return primitives.DefaultGrace
	}
	return grace
}

// processes returns the commands of this handle that were not closed.
func (s *Sandbox) processes() (map[*process]struct{}, map[*durable]struct{}) {
	s.procsMu.Lock()
	defer s.procsMu.Unlock()
	return maps.Clone(s.procs), maps.Clone(s.durables)
}

// release waits for the commands, which have all been ended, and closes the control group. The
// streams stay open, so that the caller can read the rest of the output.
func (s *Sandbox) release(procs map[*process]struct{}, durables map[*durable]struct{}) {
	for p := range procs {
		p.end(primitives.ReasonCancelled)
		<-p.done
	}
	for d := range durables {
		<-d.joined
	}
	if s.group != nil {
		s.group.Close()
	}
}

// remove tells the other handles that the sandbox has ended, and removes what New made.
func (s *Sandbox) remove() error {
	err := s.life.Truncate(lifeEnded)
	if s.group != nil {
		err = errors.Join(err, removeGroup(s.group.Path()))
	}
	if !s.st.LeaveFiles {
		err = errors.Join(err, s.st.discard())
	}
	if err == nil {
		s.st.collector.tell(sandboxGone, s.st.Session)
	}
	return err
}

// removeGroup removes an emptied control group. It retries, because the kernel releases the last
// processes a moment after they have ended.
func removeGroup(path string) error {
	var err error
	left := untilEmpty(killTime, nil, func() []proctree.Proc {
		if err = cgroup.Remove(path); err != nil {
			return make([]proctree.Proc, 1)
		}
		return nil
	})
	if len(left) == 0 {
		return nil
	}
	return err
}

// family returns all processes of the sandbox.
func (s *Sandbox) family(procs map[*process]struct{}) family {
	if s.group != nil && !s.noGroup.Load() {
		return newGroupFamily(s.group.Path())
	}
	leaders := make(map[int]*process, len(procs))
	for p := range procs {
		leaders[p.pid] = p
	}
	leads := func(pid int) bool {
		p := leaders[pid]
		return p != nil && p.running()
	}
	return &scanFamily{
		belongs: func(q proctree.Proc) bool {
			return leads(q.PID) || leads(q.SID) || leads(q.PGID) || s.reaper.adopted(q) || carries(q, sandboxMark, s.id)
		},
		fallback: func() []proctree.Proc {
			var all []proctree.Proc
			for p := range procs {
				if p.running() {
					all = append(all, processGroup(p.pid)...)
				}
			}
			return all
		},
	}
}

// Close implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if !s.terminated {
		close(s.down)
	}
	procs, durables := s.processes()
	s.mu.Unlock()
	s.forwards.end()
	errs := []error{s.files.Close()}
	// Start all ladders at once, so that the grace periods overlap.
	for p := range procs {
		p.end(primitives.ReasonCancelled)
	}
	for p := range procs {
		errs = append(errs, p.Close())
	}
	for d := range durables {
		errs = append(errs, d.Close())
	}
	s.reaper.close()
	if s.group != nil {
		s.group.Close()
	}
	errs = append(errs, s.life.Close())
	s.st.collector.tell(handleClosed, s.st.Session)
	return s.fail("close", s.id, errors.Join(errs...))
}

// endAbandoned ends the commands of programs that have died, except for durable commands.
func endAbandoned(sandboxes ...*state) {
	var all sync.WaitGroup
	swept := make(map[string]bool)
	for _, st := range sandboxes {
		if _, err := os.Stat(st.Group); err != nil {
			swept[st.ID] = true // there is no control group
			continue
		}
		names, _ := cgroup.Leaves(st.Group) // empty if the group is gone
		for _, name := range names {
			if abandoned(name) {
				path := filepath.Join(st.Group, name)
				all.Go(func() {
					endProcesses(newGroupFamily(path), primitives.DefaultGrace, nil)
					_ = cgroup.Remove(path)
				})
			}
		}
	}
	if len(swept) > 0 {
		endProcesses(&scanFamily{belongs: func(p proctree.Proc) bool {
			values, ok := proctree.Mark(p, sandboxMark, execMark)
			return ok && swept[values[0]] && abandoned(values[1])
		}}, primitives.DefaultGrace, nil)
	}
	all.Wait()
}

// abandoned reports whether the program that started a command has died. execID is the command's ID
// or the name of its control group.
func abandoned(execID string) bool {
	rest, ok := strings.CutPrefix(execID, "x-")
	if !ok {
		return false
	}
	name, _, _ := strings.Cut(rest, "-")
	owner, err := proctree.ParseIdentity(name)
	return err == nil && !proctree.Alive(owner)
}
