package agentmcp

import (
	"context"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// endlessly starts an agent that does not end by itself, and returns its session when it works.
func (r *rig) endlessly(parent *session.AgentSession) *session.AgentSession {
	r.t.Helper()
	got := call[report](r.t, r.client(parent), "start_agent_session", args{"agent_blueprint_name": "endless", "prompt": "hi", "mode": "async"})
	return r.host.Opened(got.SessionID)
}

// begin prompts a session and returns when its agent works.
func (r *rig) begin(s *session.AgentSession, prompt string) *session.Turn {
	r.t.Helper()
	turn, err := s.Prompt(r.t.Context(), prompt)
	if err != nil {
		r.t.Fatal(err)
	}
	for ev, err := range turn.Events(r.t.Context()) {
		if err != nil {
			r.t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeQueryStarted {
			break
		}
	}
	return turn
}

// TestTheEndOfAnAgentEndsOthers checks that the sandboxes of started agents have ended when that of the one that has started
// them has.
func TestTheEndOfAnAgentEndsOthers(t *testing.T) {
	r := newRig(t, map[string]string{"endless": endless, "echo": echo}, nil)
	for name, end := range map[string]func(*session.AgentSession) error{
		"close":     (*session.AgentSession).Close,
		"terminate": func(s *session.AgentSession) error { return s.TerminateEnvironment(t.Context()) },
		"destroy":   func(s *session.AgentSession) error { return r.host.Destroy(t.Context(), s.ID()) },
	} {
		parent := r.parent()
		child := r.endlessly(parent)
		if err := end(parent); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.host.Opened(child.ID()) != nil {
			t.Errorf("%s: the session of the other agent is open", name)
		}
		if state, _ := child.State(t.Context()); state.Environment.Status == session.EnvironmentReady || state.Query != nil {
			t.Errorf("%s: it is %+v", name, state.Environment)
		}
	}
}

// TestAnInterruptStopsOthers interrupts and fails queries of an agent: those of the agents that it has started end, too.
func TestAnInterruptStopsOthers(t *testing.T) {
	r := newRig(t, map[string]string{"endless": endless}, nil)
	parent := r.parent()
	for _, prompt := range []string{"endless", "failing"} {
		child := r.endlessly(parent)
		running := child.Turns()
		turn := r.begin(parent, prompt)
		if prompt == "endless" {
			if err := turn.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = turn.Wait(t.Context())
		for _, other := range running {
			if done, err := other.Wait(t.Context()); err != nil || done.StopReason != runnerscripts.StopCancelled {
				t.Errorf("%s: the other's query ends with %+v, %v", prompt, done, err)
			}
		}
		if state, err := child.State(t.Context()); err != nil || state.Query != nil {
			t.Errorf("%s: it is %+v, %v", prompt, state.Query, err)
		}
	}
}

// slowHost is a host that waits before it opens a session.
type slowHost struct {
	*session.Host
	opening, goOn chan struct{}
}

func (h *slowHost) wait() {
	h.opening <- struct{}{}
	<-h.goOn
}

func (h *slowHost) Create(ctx context.Context, cfg session.Config) (*session.AgentSession, error) {
	h.wait()
	return h.Host.Create(ctx, cfg)
}

func (h *slowHost) OpenAs(ctx context.Context, id string, change func(*session.Config)) (*session.AgentSession, error) {
	h.wait()
	return h.Host.OpenAs(ctx, id, change)
}

// TestAnInterruptStopsThoseThatAreStarted interrupts an agent while it starts another one, and while it resumes that.
func TestAnInterruptStopsThoseThatAreStarted(t *testing.T) {
	r := newRig(t, map[string]string{"endless": endless}, nil)
	slow := &slowHost{r.host, make(chan struct{}), make(chan struct{})}
	r.server.Use(slow)
	parent := r.parent()
	c := r.client(parent)
	type answer struct {
		report
		err error
	}
	var id string
	for _, tool := range []string{"start_agent_session", "resume_agent_session"} {
		turn := r.begin(parent, "endless")
		with := args{"session_id": id, "prompt": "hi"}
		if id == "" {
			with = args{"agent_blueprint_name": "endless", "prompt": "hi"}
		}
		answers := make(chan answer, 1)
		go func() {
			got, err := try[report](t, c, tool, with)
			answers <- answer{got, err}
		}()
		<-slow.opening
		if err := turn.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := turn.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		slow.goOn <- struct{}{}
		got := <-answers
		if got.err != nil || got.Status != statusInterrupted {
			t.Fatalf("%s: %+v, %v", tool, got.report, got.err)
		}
		id = got.SessionID
		if all := call[sessions](t, c, "list_agent_sessions", nil).Sessions; len(all) != 1 || all[0].Status != statusInterrupted {
			t.Errorf("%s: the sessions are %+v", tool, all)
		}
		call[report](t, c, "stop_agent_session", args{"session_id": id})
	}
}
