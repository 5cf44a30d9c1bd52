package postgres

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/internal/test/testpostgres"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// opened opens a store, which is closed with the test.
func opened(t *testing.T, c Config, url string) *Store {
	t.Helper()
	s, err := c.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheStoreKeepsTheContract(t *testing.T) {
	testpostgres.URL(t) // its server is that of all cases
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		url := testpostgres.URL(t)
		return opened(t, Config{}, url), func() store.Store { return opened(t, Config{}, url) }
	})
}

// Text of PostgreSQL has neither zero bytes nor other than UTF-8.
func TestOddTextSurvives(t *testing.T) {
	t.Parallel()
	const odd = "a\x00b\xffc"
	s := opened(t, Config{}, testpostgres.URL(t))
	if err := s.Create(t.Context(), store.Record{ID: odd, Title: "\x00", Config: []byte(odd), State: []byte(odd)}); err != nil {
		t.Fatal(err)
	}
	ev := runnerscripts.Event{Seq: 1, Type: "\x00", QueryID: "\x00", SessionID: odd, Payload: []byte("{\"\\u0000\": \"\x00\xff\"}")}
	if err := s.Append(t.Context(), odd, ev); err != nil {
		t.Fatal(err)
	}
	r, err := s.Load(t.Context(), odd)
	if err != nil || r.ID != odd || r.Title != "\x00" || string(r.Config) != odd || string(r.State) != odd {
		t.Errorf("record %+v, %v", r, err)
	}
	for got, err := range s.Events(t.Context(), odd, 1) {
		if err != nil || got.Type != ev.Type || got.QueryID != ev.QueryID || got.SessionID != odd || string(got.Payload) != string(ev.Payload) {
			t.Errorf("event %+v, %v", got, err)
		}
	}
}
