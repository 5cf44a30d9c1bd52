package primitivestest

import (
	"context"
	"sync"
)

// ending is a state of a sandbox that several cases share. Creating a sandbox is the most
// expensive part of a run of the suite.
type ending string

const (
	alive      ending = "alive" // not ended: it sees what others leave
	terminated ending = "terminated"
	closed     ending = "closed" // the handle is closed, the sandbox lives on
	destroyed  ending = "destroyed"
)

// commonSandbox is created for the first case that needs it.
type commonSandbox struct {
	make sync.Once
	box  *sandbox
}

// commonly returns the sandbox that create returned to the first caller.
func (s *suite) commonly(t testingT, how ending, create func() *sandbox) *sandbox {
	t.Helper()
	s.mu.Lock()
	c := s.common[how]
	if c == nil {
		c = &commonSandbox{}
		s.common[how] = c
	}
	s.mu.Unlock()
	c.make.Do(func() { c.box = create() })
	if c.box == nil {
		t.Fatalf("there is no sandbox that is %s, as another case says", how)
	}
	return c.box
}

// ended returns a sandbox that has just ended.
func (s *suite) ended(t testingT, how ending) *sandbox {
	t.Helper()
	return s.commonly(t, how, func() *sandbox {
		box := s.make(t)
		switch how {
		case terminated:
			box.terminate(t)
		case closed:
			expect(t, "error of Close", box.Close(), nil)
		case destroyed:
			if err := s.h.Destroy(context.WithoutCancel(t.Context()), box.EnvironmentPrimitive); err != nil {
				t.Errorf("destroying the sandbox: %v", err)
			}
		}
		return box
	})
}

// witness returns a sandbox that no case ends.
func (s *suite) witness(t testingT) *sandbox {
	t.Helper()
	return s.commonly(t, alive, func() *sandbox {
		box := s.open(t)
		box.processes(t, box.token) // descriptors that the first command opens for good are not a leak
		return box
	})
}

// endCommon ends the common sandboxes except the witness.
func (s *suite) endCommon(t testingT) {
	t.Helper()
	for _, how := range []ending{terminated, closed, destroyed} {
		if c := s.common[how]; c != nil && c.box != nil {
			c.box.end(t)
		}
		delete(s.common, how)
	}
}

// endWitness ends the witness; the next group gets a new one.
func (s *suite) endWitness(t testingT) {
	t.Helper()
	if c := s.common[alive]; c != nil && c.box != nil {
		c.box.end(t)
	}
	delete(s.common, alive)
}

// expectNoProcesses checks from another sandbox that a terminated sandbox has no processes.
func (s *suite) expectNoProcesses(t testingT, token string) {
	t.Helper()
	witness := s.witness(t)
	defer witness.kill(t, token) // also if expectGone fails
	witness.expectGone(t, token)
}

// endEscapees ends the processes of a terminated sandbox that cannot find all of its processes.
func (s *suite) endEscapees(t testingT, token string) {
	t.Helper()
	witness := s.witness(t)
	witness.kill(t, token)
	witness.expectGone(t, token)
}
