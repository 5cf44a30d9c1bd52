package sessiontest

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	sandbox "github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// harness returns what the suite needs to check broken sessions of this program.
func harness(broken func(Host) Host) Harness {
	return Harness{
		Open: func(t *testing.T) Host {
			return broken(Local(t, session.HostConfig{Store: store.NewMemory(), Session: session.Config{
				Environment: environment.Config{OnPermission: environment.AnswerLater},
			}}))
		},
		Environment: func(t *testing.T) environment.Config {
			return environment.Config{Sandbox: environment.Sandbox{Type: "local", Provider: &sandbox.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}}
		},
	}
}

// sessions returns a host whose sessions are broken.
func sessions(broken func(Session) Session) func(Host) Host {
	return func(h Host) Host { return hostOf{h, broken} }
}

type hostOf struct {
	Host
	broken func(Session) Session
}

func (h hostOf) Create(ctx context.Context, cfg session.Config) (Session, error) {
	s, err := h.Host.Create(ctx, cfg)
	return h.broken(s), err
}

func (h hostOf) Open(ctx context.Context, id string) (Session, error) {
	s, err := h.Host.Open(ctx, id)
	return h.broken(s), err
}

// turns returns a host whose turns are broken.
func turns(broken func(Session, Turn) Turn) func(Host) Host {
	return sessions(func(s Session) Session { return turned{s, broken} })
}

type turned struct {
	Session
	broken func(Session, Turn) Turn
}

func (s turned) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (Turn, error) {
	t, err := s.Session.Prompt(ctx, text, attachments...)
	if err != nil {
		return nil, err
	}
	return s.broken(s.Session, t), nil
}

// mutants maps the name of each rule to a host that breaks it, and to what the rule says then.
var mutants = map[string]struct {
	broken func(Host) Host
	says   string
}{
	"Prompt/an_empty_one_is_refused_and_leaves_no_event":                              {sessions(func(s Session) Session { return filling{s} }), "an empty prompt: error <nil>, want invalid argument"},
	"Prompt/the_agent_gets_the_attachments_and_the_session_names_them":                {sessions(func(s Session) Session { return textual{s} }), `the agent got ""`},
	"Prompt/what_the_agent_does_not_accept_is_refused_and_leaves_no_event":            {sessions(func(s Session) Session { return textual{s} }), "an image for an executor: error <nil>, want unsupported operation"},
	"Prompt/an_output_schema_holds_for_its_query,_which_says_it":                      {sessions(func(s Session) Session { return textual{s} }), "the output is "},
	"Prompt/a_query_that_is_the_session's_to_decide_is_refused_and_leaves_no_event":   {sessions(func(s Session) Session { return textual{s} }), "After: error <nil>, want invalid argument"},
	"Prompt/more_than_may_wait_are_refused":                                           {func(h Host) Host { return limitless{h} }, "a third that waits: error <nil>, want session is busy"},
	"Prompt/one_that_came_while_another_runs_is_refused_on_demand":                    {func(h Host) Host { return patient{h} }, "a prompt beside another: error <nil>, want session is busy"},
	"Prompt/the_context_covers_the_acceptance_alone":                                  {sessions(func(s Session) Session { return bound{s} }), "a prompt whose context is done: error <nil>, want context canceled"},
	"PromptOnce/one_that_is_sent_again_is_the_query_of_before,_in_each_of_its_states": {sessions(func(s Session) Session { return repeating{s} }), "the ended query is "},
	"PromptOnce/another_prompt_under_its_ID_is_refused_and_leaves_no_event":           {sessions(func(s Session) Session { return textual{s} }), "attachment: error <nil>, want invalid argument"},
	"Turn/its_events_can_be_read_again_after_its_end":                                 {turns(func(_ Session, t Turn) Turn { return &once{Turn: t} }), "read again it has 0 events"},
	"Turn/the_events_of_other_queries_are_not_among_its_own":                          {turns(func(s Session, t Turn) Turn { return everything{t, s} }), " has the event "},
	"Turn/a_failed_query_is_a_QueryError_with_the_agent's_words":                      {turns(func(_ Session, t Turn) Turn { return worded{t} }), "want a QueryError of "},
	"Events/they_are_numbered_from_1_without_a_gap":                                   {sessions(func(s Session) Session { return gappy{s} }), "event 3 is "},
	"Events/they_start_where_asked,_also_in_what_has_not_happened":                    {sessions(func(s Session) Session { return fromStart{s} }), "from 3 the first event is 1"},
	"Events/several_readers_get_the_same":                                             {sessions(func(s Session) Session { return &unfair{Session: s} }), " got "},
	"Events/a_slow_reader_misses_nothing_and_holds_nobody_up":                         {sessions(func(s Session) Session { return lossy{s} }), "the slow reader got "},
	"Events/they_end_with_the_context_and_with_the_session":                           {sessions(func(s Session) Session { return failing{s} }), "at the end of the session: EOF"},
	"State/it_is_the_fold_of_the_events":                                              {sessions(func(s Session) Session { return untitled{s} }), "and its events say"},
	"Interrupt/a_queued_prompt_is_withdrawn_alone":                                    {turns(func(s Session, t Turn) Turn { return coarse{t, s} }), `the withdrawn one stopped because of "end_turn"`},
	"Respond/the_first_answer_counts":                                                 {sessions(func(s Session) Session { return polite{s} }), "a second answer: error <nil>, want permission request"},
	"Respond/a_decision_that_was_not_offered_leaves_the_request_open":                 {sessions(func(s Session) Session { return hasty{s} }), ": error <nil>, want invalid argument"},
	"SetOptions/later_queries_have_them,_in_new_sandboxes_too":                        {sessions(func(s Session) Session { return stubborn{s} }), `the agent said "as "`},
	"Files/without_a_sandbox_it_is_ErrNoEnvironment":                                  {sessions(func(s Session) Session { return empty{s} }), "the list: error <nil>, want session has no running environment"},
	"Files/one_that_does_not_exist_is_fs.ErrNotExist":                                 {sessions(func(s Session) Session { return vague{s} }), "a file that does not exist: error not found"},
	"WriteWorkspace/the_agent_begins_with_these_files_alone":                          {sessions(func(s Session) Session { return unwritten{s} }), "the files are [{FileInfo:{Path:own"},
	"WriteWorkspace/other_files,_a_used_session_and_no_archive_are_refused":           {sessions(func(s Session) Session { return unwritten{s} }), "no archive: error <nil>"},
	"Sync/it_makes_a_checkpoint_of_what_is_there_now":                                 {sessions(func(s Session) Session { return lazy{s} }), `it has ""`},
	"Changes/they_are_what_lies_between_two_checkpoints":                              {sessions(func(s Session) Session { return backward{s} }), `"deleted f", want "created f"`},
	"Rewind/the_agent_goes_on_from_there,_and_nothing_is_lost":                        {sessions(func(s Session) Session { return forward{s} }), "the log had "},
	"Rewind/while_a_query_runs_it_is_ErrBusy":                                         {sessions(func(s Session) Session { return forward{s} }), "a return while a query runs: error <nil>"},
	"Fork/a_copy_can_begin_at_a_checkpoint":                                           {sessions(func(s Session) Session { return latest{s} }), `the copy said "after a`},
	"TerminateEnvironment/the_agent_goes_on_in_a_new_sandbox":                         {sessions(func(s Session) Session { return clinging{s} }), "the sandbox is ready"},
	"Unload/a_session_that_is_opened_again_has_all_of_it":                             {func(h Host) Host { return &forgetful{Host: h} }, `the agent said "after "`},
	"Open/an_unknown_session_is_ErrNotFound":                                          {func(h Host) Host { return inventive{h} }, "an unknown session: error <nil>, want no such session"},
	"List/it_has_the_sessions_and_what_they_say_of_themselves":                        {func(h Host) Host { return short{h} }, "not listed are "},
	"Destroy/nothing_is_left":                                                         {func(h Host) Host { return hoarding{h} }, "the session: error <nil>, want no such session"},
}

const mutantVariable = "SESSIONTEST_MUTANT"

// TestMutant runs the suite on a mutant. TestTheSuiteCatchesMutants runs it in a child process, where it must fail.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("runs as a child of TestTheSuiteCatchesMutants only")
	}
	Run(t, harness(mutants[name].broken))
}

func TestTheSuiteCatchesMutants(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pattern := strings.ReplaceAll("^TestMutant/"+name+"$", "/", "$/^")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+pattern)
			cmd.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+name+" ") || !strings.Contains(string(out), m.says) {
				t.Errorf("the suite did not catch the mutant, want %q: %v\n%s", m.says, err, out)
			}
		})
	}
}

// filling gives an empty prompt a text.
type filling struct{ Session }

func (s filling) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (Turn, error) {
	if text == "" {
		text = " "
	}
	return s.Session.Prompt(ctx, text, attachments...)
}

// textual loses what comes with a text.
type textual struct{ Session }

func (s textual) Prompt(ctx context.Context, text string, _ ...runnerscripts.Attachment) (Turn, error) {
	return s.Session.Prompt(ctx, text)
}

func (s textual) PromptQuery(ctx context.Context, q environment.Query) (Turn, error) {
	return s.Session.Prompt(ctx, q.Prompt)
}

func (s textual) PromptOnce(ctx context.Context, q environment.Query) (Turn, error) {
	return s.Session.PromptOnce(ctx, environment.Query{ID: q.ID, Prompt: q.Prompt})
}

// repeating accepts each prompt.
type repeating struct{ Session }

func (s repeating) PromptOnce(ctx context.Context, q environment.Query) (Turn, error) {
	q.ID = ""
	return s.PromptQuery(ctx, q)
}

// limitless queues any number of prompts.
type limitless struct{ Host }

func (h limitless) Create(ctx context.Context, cfg session.Config) (Session, error) {
	cfg.MaxQueue = 0
	return h.Host.Create(ctx, cfg)
}

// patient queues prompts that are to be refused.
type patient struct{ Host }

func (h patient) Create(ctx context.Context, cfg session.Config) (Session, error) {
	cfg.RejectBusy = false
	return h.Host.Create(ctx, cfg)
}

// bound does not look at the context.
type bound struct{ Session }

func (s bound) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (Turn, error) {
	return s.Session.Prompt(context.WithoutCancel(ctx), text, attachments...)
}

// once has its events only once.
type once struct {
	Turn
	read bool
}

func (t *once) Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	if t.read {
		return func(func(runnerscripts.Event, error) bool) {}
	}
	t.read = true
	return t.Turn.Events(ctx)
}

// everything has the events of all queries up to its own end.
type everything struct {
	Turn
	of Session
}

func (t everything) Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range t.of.Events(ctx, 0) {
			if !yield(ev, err) || err != nil || ev.QueryID == t.ID() && ev.Type == runnerscripts.TypeQueryCompleted {
				return
			}
		}
	}
}

// worded keeps the text of an error alone.
type worded struct{ Turn }

func (t worded) Wait(ctx context.Context) (runnerscripts.QueryCompleted, error) {
	done, err := t.Turn.Wait(ctx)
	if err != nil {
		err = errors.New(err.Error())
	}
	return done, err
}

// gappy leaves out the third event.
type gappy struct{ Session }

func (s gappy) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range s.Session.Events(ctx, from) {
			if ev.Seq != 3 && !yield(ev, err) {
				return
			}
		}
	}
}

// fromStart begins with the first event.
type fromStart struct{ Session }

func (s fromStart) Events(ctx context.Context, _ uint64) iter.Seq2[runnerscripts.Event, error] {
	return s.Session.Events(ctx, 0)
}

// unfair leaves out the second event for every reader but the first.
type unfair struct {
	Session
	mu      sync.Mutex
	readers int
}

func (s *unfair) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	s.mu.Lock()
	s.readers++
	first := s.readers%2 == 1
	s.mu.Unlock()
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range s.Session.Events(ctx, from) {
			if (first || ev.Seq != 2) && !yield(ev, err) {
				return
			}
		}
	}
}

// lossy drops events that a reader is too slow for.
type lossy struct{ Session }

func (s lossy) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		next := make(chan runnerscripts.Event, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ev, err := range s.Session.Events(ctx, from) {
				if err != nil {
					return
				}
				select {
				case next <- ev:
				default:
				}
			}
		}()
		defer func() { cancel(); <-done }()
		for {
			select {
			case ev := <-next:
				if !yield(ev, nil) {
					return
				}
			case <-done:
				return
			}
		}
	}
}

// failing ends the events of a closed session with an error.
type failing struct{ Session }

func (s failing) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range s.Session.Events(ctx, from) {
			if !yield(ev, err) || err != nil {
				return
			}
		}
		yield(runnerscripts.Event{}, io.EOF)
	}
}

// untitled loses a part of the state.
type untitled struct{ Session }

func (s untitled) State(ctx context.Context) (session.State, error) {
	state, err := s.Session.State(ctx)
	state.Title = ""
	return state, err
}

// coarse interrupts whatever runs.
type coarse struct {
	Turn
	of Session
}

func (t coarse) Interrupt(ctx context.Context) error { return t.of.Interrupt(ctx) }

// polite takes every answer.
type polite struct{ Session }

func (s polite) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if err := s.Session.Respond(ctx, id, d); !errors.Is(err, session.ErrNotPending) {
		return err
	}
	return nil
}

// hasty rejects a request if it cannot use the decision.
type hasty struct{ Session }

func (s hasty) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if s.Session.Respond(ctx, id, d) != nil {
		_ = s.Session.Respond(ctx, id, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce})
	}
	return nil
}

// stubborn takes no options.
type stubborn struct{ Session }

func (s stubborn) SetOptions(context.Context, session.Options) error { return nil }

// empty has no files where there is no sandbox.
type empty struct{ Session }

func (s empty) Files(ctx context.Context, opts environment.FilesOptions) ([]environment.WorkspaceFile, error) {
	list, err := s.Session.Files(ctx, opts)
	if errors.Is(err, session.ErrNoEnvironment) {
		return nil, nil
	}
	return list, err
}

// vague does not say which error it is.
type vague struct{ Session }

func (s vague) OpenFile(ctx context.Context, name string) (io.ReadCloser, error) {
	f, err := s.Session.OpenFile(ctx, name)
	if err != nil {
		return nil, errors.New("not found")
	}
	return f, nil
}

// lazy returns the checkpoint that there is.
type lazy struct{ Session }

func (s lazy) Sync(ctx context.Context) (session.Checkpoint, error) {
	state, err := s.State(ctx)
	if err != nil || len(state.Checkpoints) == 0 {
		return session.Checkpoint{}, err
	}
	return state.Checkpoints[len(state.Checkpoints)-1], nil
}

// backward takes one checkpoint for the other.
type backward struct{ Session }

func (s backward) Changes(ctx context.Context, from, to int) ([]environment.Change, error) {
	return s.Session.Changes(ctx, to, from)
}

// forward goes nowhere.
type forward struct{ Session }

func (s forward) Rewind(context.Context, int) error { return nil }

// latest forks from now.
type latest struct{ Session }

func (s latest) ForkFrom(ctx context.Context, _, n int) ([]Session, error) { return s.Fork(ctx, n) }

// clinging keeps its sandbox.
type clinging struct{ Session }

func (s clinging) TerminateEnvironment(context.Context) error { return nil }

// forgetful opens a new session in place of one that was closed.
type forgetful struct {
	Host
	cfg session.Config
}

func (h *forgetful) Create(ctx context.Context, cfg session.Config) (Session, error) {
	h.cfg = cfg
	return h.Host.Create(ctx, cfg)
}

func (h *forgetful) Open(ctx context.Context, _ string) (Session, error) { return h.Create(ctx, h.cfg) }

// inventive makes a session that there is not.
type inventive struct{ Host }

func (h inventive) Open(ctx context.Context, id string) (Session, error) {
	s, err := h.Host.Open(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return s, err
}

// short lists only one session.
type short struct{ Host }

func (h short) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	f.Limit = 1
	return h.Host.List(ctx, f)
}

// hoarding closes a session that is to be destroyed.
type hoarding struct{ Host }

func (h hoarding) Create(ctx context.Context, cfg session.Config) (Session, error) {
	s, err := h.Host.Create(ctx, cfg)
	return closing{s, h}, err
}

type closing struct {
	Session
	host Host
}

func (s closing) Destroy(ctx context.Context) error { return s.host.Unload(ctx, s.ID()) }

// unwritten stores no files.
type unwritten struct{ Session }

func (unwritten) WriteWorkspace(context.Context, io.Reader) error { return nil }
