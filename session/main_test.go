package session

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// runnerBinary is the path of the runner of the present source.
var runnerBinary string

func TestMain(m *testing.M) {
	if root := os.Getenv(orphanIn); root != "" {
		leaveOrphan(root)
	}
	if config := os.Getenv(hostVariable); config != "" {
		if err := beHost(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var err error
	if runnerBinary, err = bundle.Path(context.Background(), bundle.Config{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testleak.Exit(testdocker.Main(m))
}

// scripted returns the configuration of a local sandbox in which the script agent plays the
// given turns, one for each prompt.
func scripted(t testing.TB, turns ...[]runnerscripts.ScenarioStep) Config {
	t.Helper()
	var scenario runnerscripts.Scenario
	for _, steps := range turns {
		scenario.Turns = append(scenario.Turns, runnerscripts.ScenarioTurn{Steps: steps})
	}
	data, err := json.Marshal(scenario)
	if err != nil {
		t.Fatal(err)
	}
	return Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}},
		Agent:   environment.Agent{Name: "script", Config: data},
		Runner:  runnerBinary, OnPermission: environment.AnswerLater,
	}}
}

func steps(s ...runnerscripts.ScenarioStep) []runnerscripts.ScenarioStep { return s }

func say(text string) runnerscripts.ScenarioStep { return runnerscripts.ScenarioStep{Text: text} }

func write(path, content string) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Write: &runnerscripts.ScenarioWrite{Path: path, Content: content}}
}

func run(args ...string) runnerscripts.ScenarioStep { return runnerscripts.ScenarioStep{Run: args} }

func ask(step runnerscripts.ScenarioStep) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Ask: &step}
}

// forever is a step that only an interrupt ends.
func forever() runnerscripts.ScenarioStep { return runnerscripts.ScenarioStep{DelayMS: 3_600_000} }

// start opens a session that is closed with the test.
func start(t *testing.T, cfg Config) *AgentSession {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	return s
}

func closeLater(t *testing.T, s *AgentSession) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Close(); err != nil && s.broken == nil {
			t.Errorf("close: %v", err)
		}
	})
}

// prompt sends a prompt, which must be accepted.
func prompt(t *testing.T, s *AgentSession, text string) *Turn {
	t.Helper()
	turn, err := s.Prompt(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

// complete waits for the end of a query, which must complete.
func complete(t *testing.T, turn *Turn) runnerscripts.QueryCompleted {
	t.Helper()
	done, err := turn.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// converse sends a prompt, waits for its end, and returns what the agent said.
func converse(t *testing.T, s *AgentSession, text string) string {
	t.Helper()
	turn := prompt(t, s, text)
	complete(t, turn)
	c, err := Reduce(turn.Events(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return said(c)
}

// said returns everything that the agent said in a conversation.
func said(c *Conversation) string {
	var parts []string
	for _, b := range c.Blocks {
		if b.Kind == BlockAgent {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "|")
}

// await returns the session's first event of a type, and waits for it.
func await(t *testing.T, s *AgentSession, typ runnerscripts.EventType) runnerscripts.Event {
	t.Helper()
	return awaitFrom(t, s, 1, typ)
}

func awaitFrom(t *testing.T, s *AgentSession, from uint64, typ runnerscripts.EventType) runnerscripts.Event {
	t.Helper()
	for ev, err := range s.Events(t.Context(), from) {
		if err != nil {
			t.Fatalf("waiting for %s: %v", typ, err)
		}
		if ev.Type == typ {
			return ev
		}
	}
	t.Fatalf("the session ended without %s", typ)
	return runnerscripts.Event{}
}

// logOf returns the stored events of the session, and checks their numbers.
func logOf(t *testing.T, s *AgentSession) []runnerscripts.Event {
	t.Helper()
	var events []runnerscripts.Event
	for ev, err := range s.store.Events(t.Context(), s.id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(len(events) + 1); ev.Seq != want {
			t.Fatalf("event %d has number %d", want, ev.Seq)
		}
		if ev.SessionID != s.id || ev.Time.IsZero() || !json.Valid(ev.Payload) {
			t.Errorf("event %d lacks session, time or payload: %+v", ev.Seq, ev)
		}
		events = append(events, ev)
	}
	return events
}

// count returns the number of events of a type.
func count(events []runnerscripts.Event, typ runnerscripts.EventType) int {
	n := 0
	for _, ev := range events {
		if ev.Type == typ {
			n++
		}
	}
	return n
}

// inOrder fails unless the types occur in this order. Other types may come between them.
func inOrder(t *testing.T, events []runnerscripts.Event, types ...runnerscripts.EventType) {
	t.Helper()
	all := typesOf(events)
	rest := all
	for _, typ := range types {
		i := slices.Index(rest, typ)
		if i < 0 {
			t.Fatalf("no %s in its place in %v", typ, all)
		}
		rest = rest[i+1:]
	}
}

func typesOf(events []runnerscripts.Event) []runnerscripts.EventType {
	var types []runnerscripts.EventType
	for _, ev := range events {
		types = append(types, ev.Type)
	}
	return types
}

// payload decodes a payload that must be readable.
func payload[T any](t *testing.T, ev runnerscripts.Event) T {
	t.Helper()
	v, err := runnerscripts.Payload[T](ev)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
