package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestAPromptThatIsSentAgainIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(Config{MaxQueue: 1})
	s := startFake(t, cfg, newFake())
	send := func(s *AgentSession, id string) *Turn {
		t.Helper()
		turn, err := s.PromptOnce(t.Context(), environment.Query{ID: id, Prompt: "go", Attachments: []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("text")}}})
		if err != nil || turn.ID() != id || turn.Seq() == 0 {
			t.Fatalf("%+v, %v", turn, err)
		}
		complete(t, turn)
		awaitFrom(t, s, turn.Seq(), runnerscripts.TypeSessionIdle)
		return turn
	}
	first := send(s, "once")
	if again := send(s, "once"); again.Seq() != first.Seq() {
		t.Errorf("%d, want %d", again.Seq(), first.Seq())
	}
	for i := range maxRecent - 1 {
		send(s, fmt.Sprint(i))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	cfg.Store = s.store
	s = startFake(t, cfg, newFake())
	if again := send(s, "once"); again.Seq() != first.Seq() {
		t.Errorf("in another program: %d, want %d", again.Seq(), first.Seq())
	}
	if n, want := count(logOf(t, s), runnerscripts.TypeQueryQueued), maxRecent; n != want {
		t.Errorf("%d prompts were accepted, want %d", n, want)
	}
	for _, wrong := range [][2]string{{"", "go"}, {"id", ""}} {
		if _, err := s.PromptOnce(t.Context(), environment.Query{ID: wrong[0], Prompt: wrong[1]}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// The answer to a prompt that is sent again does not depend on its event, which the store may have dropped.
func TestAPromptWhoseEventWasDroppedIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	st.MaxLog = 64 << 10
	s := startFake(t, fakeConfig(Config{Store: st}), newFake())
	once := environment.Query{ID: "once", Prompt: "go", Attachments: []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("text")}}}
	first, err := s.PromptOnce(t.Context(), once)
	if err != nil {
		t.Fatal(err)
	}
	awaitFrom(t, s, first.Seq(), runnerscripts.TypeSessionIdle)
	complete(t, prompt(t, s, strings.Repeat("x", 128<<10)))
	for _, err := range st.Events(t.Context(), s.ID(), first.Seq()) {
		if !errors.Is(err, store.ErrDropped) {
			t.Fatalf("the event: %v", err)
		}
		break
	}
	again, err := s.PromptOnce(t.Context(), once)
	if err != nil || again.ID() != "once" || again.Seq() != first.Seq() {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := again.Wait(t.Context()); !errors.Is(err, store.ErrDropped) {
		t.Errorf("its result: %v", err)
	}
}

// A program that died must learn that its query has ended with it.
func TestAPromptThatIsSentAgainSaysWhatItsQueryIs(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.query = hang
	cfg := fakeConfig(Config{Store: store.NewMemory()})
	s := startFake(t, cfg, fake)
	once := environment.Query{ID: "build-17", Prompt: "invalid UTF-8: \xff <"}
	first, err := s.PromptOnce(t.Context(), once)
	if err != nil {
		t.Fatal(err)
	}
	awaitFrom(t, s, first.Seq(), runnerscripts.TypeQueryStarted)
	if again, err := s.PromptOnce(t.Context(), once); err != nil || again != first {
		t.Errorf("while it runs: %+v, %v", again, err)
	}
	cfg.ID, cfg.Store = copyOf(t, s) // as it is after the death of the program
	s = startFake(t, cfg, newFake())
	again, err := s.PromptOnce(t.Context(), once)
	if err != nil || again.Seq() != first.Seq() {
		t.Fatalf("%+v, %v", again, err)
	}
	_, err = again.Wait(t.Context())
	if failed, is := errors.AsType[*QueryError](err); !is || failed.QueryID != "build-17" || failed.Failure.Message == "" {
		t.Errorf("the query ended with %v", err)
	}
	done, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	if _, err := again.Wait(done); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a context that is done: %v", err)
	}
	once.Prompt = "another"
	if _, err := s.PromptOnce(t.Context(), once); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("another prompt: %v", err)
	}
}

// copyOf returns the ID of a session, and a store with what its program would leave if it died now.
func copyOf(t *testing.T, s *AgentSession) (string, store.Store) {
	t.Helper()
	st := store.NewMemory()
	record, err := s.store.Load(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	for ev, err := range s.store.Events(t.Context(), s.ID(), 1) {
		if err == nil {
			err = st.Append(t.Context(), s.ID(), ev)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return s.ID(), st
}
