package query

import "github.com/agentenv-dev/agentenv/runnerscripts"

// phase is how far a query is.
type phase int

const (
	pending  phase = iota // no process has the prompt
	accepted              // a process has the prompt
	running               // the agent works on it
	ended                 // its end was reported
)

// action is what the caller of a method must do.
type action int

const (
	nothing   action = iota
	interrupt        // send the process an interrupt
	goOn             // leave the query to the next program
	again            // send the prompt to a fresh process
	died             // the query failed with its process
)

// state is the state machine of one query on the host: its interrupts, and which process has the prompt. It starts no
// goroutine and does not block: each method changes the state and returns the action that the caller performs.
//
// Two promises hold for every sequence of calls. The methods return interrupt once for each process that has the prompt of
// an interrupted query. A prompt goes to a second agent only if the first one cannot have started it.
type state struct {
	detach bool // the query may go on without this program

	phase       phase
	interrupted bool
	told        bool // interrupt was returned for the process that has the prompt
}

// accept records that a process has the prompt.
func (s *state) accept() action {
	s.phase, s.told = max(s.phase, accepted), false
	return s.tell()
}

// interrupt records an interrupt.
func (s *state) interrupt() action {
	s.interrupted = true
	return s.tell()
}

// tell returns interrupt once for each process that has the prompt of an interrupted query.
func (s *state) tell() action {
	if !s.interrupted || s.told || s.phase == pending || s.phase == ended {
		return nothing
	}
	s.told = true
	return interrupt
}

// abandon records that the caller no longer waits. mayGoOn is false if the gateway ended the query.
func (s *state) abandon(mayGoOn bool) action {
	if s.detach && mayGoOn {
		return goOn
	}
	return s.interrupt()
}

// event records an event of the query.
func (s *state) event(typ runnerscripts.EventType) {
	switch {
	case typ == runnerscripts.TypeQueryStarted && s.phase == accepted:
		s.phase = running
	case typ.EndsQuery():
		s.phase = ended
	}
}

// exit records that the process with the prompt has exited. fresh means that no second process may get the prompt, because
// this one was started for it or another program has sent it. waits means that the caller still waits for the query.
func (s *state) exit(fresh, waits bool) action {
	if s.phase == accepted && !fresh && waits {
		s.phase, s.told = pending, false
		return again
	}
	return died
}
