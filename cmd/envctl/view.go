package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// This file shows what happens in queries: of run, and of attach with a session and without one.

// view prints the events of queries and answers their permission requests.
type view struct {
	app    *app
	show   printer
	answer *answerer // nil leaves requests to another program
	// attachments come with the next prompt.
	attachments []runnerscripts.Attachment
	// schema is that of the last prompt's output; empty for none.
	schema json.RawMessage
	// withoutEnv says that the agent of the prompts has no variables.
	withoutEnv bool
	// respond sends the answer to a request to a server; nil if OnPermission returns it.
	respond func(ctx context.Context, request string, d runnerscripts.PermissionDecision) error
	// unnumbered says that another program numbers the events.
	unnumbered bool
	seq        uint64 // of the last event that was numbered here

	mu    sync.Mutex
	asked map[string]chan struct{} // by request; closed when its event is printed
	// asking withdraws the questions whose answers go to a server, and answering are their goroutines.
	asking    map[string]context.CancelFunc
	answering sync.WaitGroup
}

func (a *app) newView(answer *answerer, show printer) *view {
	answer.printer = show
	return &view{app: a, show: show, answer: answer, asked: map[string]chan struct{}{}, asking: map[string]context.CancelFunc{}}
}

// decide answers a permission request, or leaves it to another program. A question to the user
// comes after what the agent did before.
func (v *view) decide(ctx context.Context, req environment.PermissionRequest) environment.PermissionDecision {
	if v.answer == nil {
		return environment.AnswerLater(ctx, req)
	}
	if v.answer.policy == permissionAsk {
		select {
		case <-v.printed(req.ID):
		case <-ctx.Done():
		}
	}
	return v.answer.decide(ctx, req)
}

// printed returns the channel that is closed when the event of a permission request is printed.
func (v *view) printed(request string) chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, ok := v.asked[request]
	if !ok {
		c = make(chan struct{})
		v.asked[request] = c
	}
	return c
}

// requested notes that the event of a permission request is printed.
func (v *view) requested(request string) {
	c := v.printed(request)
	select {
	case <-c: // resolved comes after the event was printed
	default:
		close(c)
	}
}

// resolved forgets a permission request.
func (v *view) resolved(request string) {
	v.requested(request) // nobody waits for it any more
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.asked, request)
	if withdraw := v.asking[request]; withdraw != nil {
		withdraw()
		delete(v.asking, request)
	}
}

// ask answers a request of a session on a server, until it is resolved.
func (v *view) ask(ctx context.Context, req runnerscripts.PermissionRequest) {
	if v.respond == nil {
		return
	}
	ctx, withdraw := context.WithCancel(ctx)
	v.mu.Lock()
	v.asking[req.ID] = withdraw
	v.mu.Unlock()
	v.answering.Go(func() {
		defer withdraw()
		d := v.answer.decide(ctx, req)
		if ctx.Err() != nil {
			return
		}
		if err := v.respond(ctx, req.ID, d); err != nil && ctx.Err() == nil && !errors.Is(err, session.ErrNotPending) {
			fmt.Fprintf(v.app.err, "warn: the answer did not reach the agent: %v\n", err)
		}
	})
}

// prompts runs prompts one after the other and prints their events.
func (v *view) prompts(ctx context.Context, log *sessionLog, prompts []string) error {
	for i, prompt := range prompts {
		q := v.query(prompt, i == len(prompts)-1)
		turn, err := log.prompt(ctx, q)
		err = refused(err, q)
		if err == nil {
			err = v.turn(ctx, log, turn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goOn prints the pending queries of a session, and then runs prompts. attach is the command that
// follows the session.
func (v *view) goOn(ctx context.Context, log *sessionLog, pending []query, prompts []string, attach string) (err error) {
	if len(pending) > 0 {
		err = log.from(ctx, pending[0])
	} else {
		err = log.onward(ctx) // without what opening a session adds about a lost query
	}
	if err != nil {
		return err
	}
	for _, turn := range pending {
		if err := v.print(ctx, log.turn(ctx, turn)); err != nil {
			if ctx.Err() != nil {
				fmt.Fprintf(v.app.err, "the query goes on: follow it with 'envctl %s'\n", attach)
			}
			return err
		}
	}
	return v.prompts(ctx, log, prompts)
}

// turn prints a query to its end. It interrupts the query when ctx is done, or when its events
// cannot be printed.
func (v *view) turn(ctx context.Context, log *sessionLog, turn query) error {
	patient, stop := v.app.unhurried(ctx)
	defer stop()
	interrupted := make(chan struct{})
	after := context.AfterFunc(ctx, func() { defer close(interrupted); v.app.interrupt(ctx, log.s, turn) })
	err := v.print(patient, log.turn(patient, turn))
	if !after() {
		<-interrupted
		if status, ended := errors.AsType[*exitError](err); ended && status.err == nil {
			err = nil // how the query ended was printed
		}
		return errors.Join(ctx.Err(), err)
	}
	if err == nil && v.respond != nil {
		if result, _ := turn.Wait(patient); result.StopReason != runnerscripts.StopCancelled {
			return nil
		}
		return errors.New("the query was cancelled: the server has ended, or another client has stopped it")
	}
	if _, ended := errors.AsType[*exitError](err); err != nil && !ended {
		if turn.Interrupt(patient) == nil {
			_, _ = turn.Wait(patient) // nobody can see how it ended
		}
	}
	return err
}

// print prints the events of a query. It returns an error that is not printed again if the query
// failed.
func (v *view) print(ctx context.Context, events iter.Seq2[runnerscripts.Event, error]) error {
	var failure *runnerscripts.QueryFailed // which is printed
	for ev, err := range events {
		switch {
		case err != nil && (failure == nil || ctx.Err() != nil):
			return err
		case err != nil:
			if failure.Code == runnerscripts.FailAPI && v.withoutEnv {
				err := v.app.err.Println(term.Plain("keys and variables of the agent are stored nowhere: set the key, as ANTHROPIC_API_KEY, for envctl, or give the variables again with --env"))
				if err != nil {
					return err
				}
			}
			return failed(err)
		}
		if err := v.show.event(ev); err != nil {
			return err
		}
		switch ev.Type { // most events are not decoded here
		case runnerscripts.TypePermissionRequest, runnerscripts.TypePermissionResolved, runnerscripts.TypeQueryFailed:
			switch p := ev.Value().(type) {
			case *runnerscripts.PermissionRequest:
				v.requested(p.ID)
				v.ask(ctx, *p)
			case *runnerscripts.PermissionResolved:
				v.resolved(p.ID)
			case *runnerscripts.QueryFailed:
				failure = p
			}
		}
	}
	return nil
}

// conversation is an open session, of this program or of a server.
type conversation interface {
	ID() string
	State(ctx context.Context) (session.State, error)
	Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error]
	Interrupt(ctx context.Context) error
}

// query is a prompt of a conversation.
type query interface {
	ID() string
	Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error]
	Wait(ctx context.Context) (runnerscripts.QueryCompleted, error)
	Interrupt(ctx context.Context) error
}

// sessionLog reads the log of an open session once, in its order.
type sessionLog struct {
	s      conversation
	prompt func(ctx context.Context, q environment.Query) (query, error)
	stored func(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] // up to now
	next   uint64                                                                       // Seq of the next event
}

// logOf returns the log of a session of this program.
func logOf(s *session.AgentSession, st store.Store) *sessionLog {
	return &sessionLog{
		s: s, next: 1,
		prompt: func(ctx context.Context, q environment.Query) (query, error) {
			return s.PromptQuery(ctx, q)
		},
		stored: func(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
			return st.Events(ctx, s.ID(), from)
		},
	}
}

// from begins with a query's first event.
func (l *sessionLog) from(ctx context.Context, turn query) error {
	for ev, err := range turn.Events(ctx) {
		l.next = ev.Seq
		return err
	}
	return fmt.Errorf("the query %s has no events", turn.ID())
}

// onward begins with what happens from now on.
func (l *sessionLog) onward(ctx context.Context) error {
	now, err := l.s.State(ctx)
	l.next = now.LastSeq + 1
	return err
}

// turn returns the events until the query has ended and its checkpoint is stored, also those
// that are of no query, followed by the query's error if it failed.
func (l *sessionLog) turn(ctx context.Context, turn query) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		pass := func(ev runnerscripts.Event, err error) bool {
			if err == nil {
				l.next = ev.Seq + 1
			}
			return yield(ev, err) && err == nil
		}
		for ev, err := range l.s.Events(ctx, l.next) {
			if !pass(ev, err) {
				return
			}
			if ev.QueryID == turn.ID() && ev.Type.EndsQuery() {
				break
			}
		}
		_, failed := turn.Wait(ctx)
		for ev, err := range l.stored(ctx, l.next) {
			if err == nil && ev.QueryID != "" && ev.QueryID != turn.ID() && ev.Type != runnerscripts.TypeQueryQueued {
				break // the next query has begun, and its turn reads that
			}
			if !pass(ev, err) {
				return
			}
		}
		if failed != nil {
			yield(runnerscripts.Event{}, failed)
		}
	}
}

// numbered numbers the events of a sandbox without a session: no store has numbered them.
func (v *view) numbered(events iter.Seq2[runnerscripts.Event, error]) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range events {
			if err == nil && !v.unnumbered {
				v.seq++
				ev.Seq = v.seq
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}
