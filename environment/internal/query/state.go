package query

import "github.com/agentenv-dev/agentenv/runnerscripts"

// phase is how far a query is.
type phase int

const (
	unsent  phase = iota // no process has the prompt
	sent                 // a process has the prompt
	started              // the agent works on it
	over                 // its end was reported
)

// action is what is to be done.
type action int

const (
	nothing   action = iota
	interrupt        // tell the agent to stop
	goOn             // leave the query to the next program
	again            // give the prompt to a fresh agent
	died             // the query failed with its process
)

// state is the state machine of one query on the side of the program: who asked it to stop, and whether the agent knows. It
// starts no goroutine and does not block: each method changes it and returns what is to be done.
//
// It promises for every sequence of calls that the agent is told once to stop if anybody asked for it, and not before a
// process has the prompt; and that a prompt goes to a second agent only if the first cannot have begun it.
type state struct {
	detach bool // the query may go on without this program

	phase       phase
	left        bool // the caller has left the loop, and gets no more events
	interrupted bool
	told        bool // the process that has the prompt was told to stop
}

// give records that a process has the prompt.
func (s *state) give() action {
	s.phase, s.told = max(s.phase, sent), false
	return s.tell()
}

// interrupt asks the query to stop.
func (s *state) interrupt() action {
	s.interrupted = true
	return s.tell()
}

// tell returns interrupt once for each process that has the prompt of an interrupted query.
func (s *state) tell() action {
	if !s.interrupted || s.told || s.phase == unsent || s.phase == over {
		return nothing
	}
	s.told = true
	return interrupt
}

// leave records that the caller has left the loop.
func (s *state) leave() action {
	s.left = true
	return s.abandon(true)
}

// abandon records that the caller does not wait any longer. mayGoOn is false if the gateway ended the query.
func (s *state) abandon(mayGoOn bool) action {
	if s.detach && mayGoOn {
		return goOn
	}
	return s.interrupt()
}

// event records an event of the query.
func (s *state) event(typ runnerscripts.EventType) {
	switch typ {
	case runnerscripts.TypeQueryStarted:
		if s.phase == sent {
			s.phase = started
		}
	case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		s.phase = over
	}
}

// exit records that the process with the prompt has ended. fresh means that the process was started for this prompt, and
// waits that the caller still waits for the query.
func (s *state) exit(fresh, waits bool) action {
	if s.phase == sent && !fresh && waits && !s.left {
		s.phase, s.told = unsent, false
		return again
	}
	return died
}
