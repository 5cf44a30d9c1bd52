package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// owned is a store of several servers, for which the test says which has the lease of a session.
type owned struct {
	*store.Memory
	owner atomic.Pointer[string]
	err   error // of Owner
	away  bool  // of Load
}

func (o *owned) Owner(context.Context, string) (string, error) { return *o.owner.Load(), o.err }
func (o *owned) Abandoned(context.Context) ([]string, error)   { return nil, nil }
func (o *owned) Lost() []string                                { return nil }

// sharing returns a server whose session "s" another one has, as its store says.
func sharing(t *testing.T, owner string) (*server.Server, *owned) {
	t.Helper()
	st := &owned{Memory: store.NewMemory()}
	st.owner.Store(&owner)
	h, err := session.NewHost(session.HostConfig{Store: st, Session: server.Sessions(nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	s := newServer(t, func(cfg *server.Config) { cfg.Host, cfg.Authenticate = h, byName })
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	if err := st.Create(t.Context(), store.Record{ID: "s", CreatedAt: time.Now(), Metadata: map[string]string{"owner": "alice"}}); err != nil {
		t.Fatal(err)
	}
	return s, st
}

func TestARequestGoesToTheServerThatHasTheSession(t *testing.T) {
	var asked []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("Authorization"), " ", r.Header.Get("Idempotency-Key"), " ", r.Header.Get("Agentenv-Forwarded"), " ", string(body)))
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "by the other")
	}))
	defer other.Close()
	s, st := sharing(t, other.URL)
	const path = "/v1/sessions/s/prompts"
	alice := append(as(server.RoleUser, "alice"), "Idempotency-Key", "k")
	if status, answer := ask(t, s, "POST", path, `{"text":"go"}`, alice...); status != http.StatusTeapot || answer != "by the other" {
		t.Errorf("%d %s", status, answer)
	}
	const run = `{"session_id":"s","text":"go"}`
	if status, answer := ask(t, s, "POST", "/v1/session/run", run, alice...); status != http.StatusTeapot {
		t.Errorf("%d %s", status, answer)
	}
	want := []string{`POST ` + path + ` Bearer alice/user k 1 {"text":"go"}`, `POST /v1/session/run Bearer alice/user k 1 ` + run}
	if !slices.Equal(asked, want) {
		t.Errorf("the other server was asked %q, want %q", asked, want)
	}
	status, answer := ask(t, s, "GET", "/v1/sessions/s", "", as(server.RoleUser, "bob")...)
	fails(t, "another user", status, answer, "session_not_found", "no such session")
	status, answer = ask(t, s, "GET", "/v1/sessions/s/events", "", "Agentenv-Forwarded", "1")
	fails(t, "in a circle", status, answer, "session_moving", "try again")
	if !slices.Equal(asked, want) {
		t.Errorf("the other server was asked %q, want %q", asked, want)
	}
	if status, answer := ask(t, s, "GET", "/v1/sessions/s", ""); status != http.StatusOK {
		t.Errorf("the state, which the store has: %d %s", status, answer)
	}
	program := "process 7 on another machine"
	st.owner.Store(&program)
	if status, answer := ask(t, s, "GET", "/v1/sessions/s/events", ""); status != http.StatusOK {
		t.Errorf("of a program that is no server: %d %s", status, answer)
	}
	st.err = &store.Error{Op: "look at the lease", Err: store.ErrUnavailable}
	status, answer = ask(t, s, "GET", "/v1/sessions/s/events", "")
	fails(t, "without the store", status, answer, "store_unavailable", "cannot be reached")
}

// The client tries again, and its change is then made.
func TestAServerThatDoesNotAnswerIsNoEnd(t *testing.T) {
	const other = "127.0.0.1:1" // any other free port may belong to another test when it is dialed
	s, st := sharing(t, "http://"+other)
	const path = "/v1/sessions/s/prompts"
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	fails(t, "the other server is dead", w.Code, w.Body.String(), "session_moving", "try again")
	if strings.Contains(w.Body.String(), other) {
		t.Errorf("a user learns where the servers are: %s", w.Body)
	}
	if w.Header().Get("Retry-After") == "" {
		t.Error("the answer does not say that the client is to try again")
	}
	none := ""
	st.owner.Store(&none)
	key := []string{"Idempotency-Key", "k"}
	st.away = true
	status, answer := ask(t, s, "POST", path, `{"text":"go"}`, key...)
	fails(t, "without the store", status, answer, "session_moving", "try again")
	st.away = false
	status, answer = ask(t, s, "POST", path, `{"text":"go"}`, key...)
	fails(t, "again, under the same key", status, answer, "invalid", "agent") // it has none: this one is made
}

// Load fails while the store is away.
func (o *owned) Load(ctx context.Context, id string) (store.Record, error) {
	if o.away {
		return store.Record{}, &store.Error{Op: "load", ID: id, Err: store.ErrUnavailable}
	}
	return o.Memory.Load(ctx, id)
}
