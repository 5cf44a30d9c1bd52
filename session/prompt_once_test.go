package session

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
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
	send := func(s *AgentSession, id string) QueryState {
		t.Helper()
		q, err := s.PromptOnce(t.Context(), environment.Query{ID: id, Prompt: "go", Attachments: []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("text")}}})
		if err != nil || q.ID != id || q.Seq == 0 || len(q.Attachments) != 1 || q.Attachments[0].Digest == "" || q.Attachments[0].Data != nil {
			t.Fatalf("%+v, %v", q, err)
		}
		awaitFrom(t, s, q.Seq, runnerscripts.TypeSessionIdle)
		return q
	}
	first := send(s, "once")
	if again := send(s, "once"); !reflect.DeepEqual(again, first) {
		t.Errorf("%+v, want %+v", again, first)
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
	if again := send(s, "once"); again.Seq != first.Seq {
		t.Errorf("in another program: %+v, want %+v", again, first)
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
	awaitFrom(t, s, first.Seq, runnerscripts.TypeSessionIdle)
	complete(t, prompt(t, s, strings.Repeat("x", 128<<10)))
	for _, err := range st.Events(t.Context(), s.ID(), first.Seq) {
		if !errors.Is(err, store.ErrDropped) {
			t.Fatalf("the event: %v", err)
		}
		break
	}
	again, err := s.PromptOnce(t.Context(), once)
	if err != nil || again.ID != "once" || again.Seq != first.Seq || again.Attachments != nil {
		t.Errorf("%+v, %v", again, err)
	}
}
