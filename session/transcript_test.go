package session

import (
	"bytes"
	"context"
	"io"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// warnings returns the messages about the history in the log events of level warn.
func warnings(t *testing.T, s *AgentSession) []string {
	t.Helper()
	var all []string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeLog {
			if l := payload[runnerscripts.Log](t, ev); l.Level == "warn" && strings.Contains(l.Message, "history") {
				all = append(all, l.Message)
			}
		}
	}
	return all
}

func stored(t *testing.T, s *AgentSession) string {
	t.Helper()
	got, err := s.storedTranscript(t.Context())
	if err != nil || got == nil {
		t.Fatalf("stored transcript %v, %v", got, err)
	}
	return got.Main
}

func TestAnAgentThatWritesItsHistoryLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, reads := newFake(), 0
		f.recall = func(history string, _ bool) (string, error) {
			if reads++; reads <= 3 {
				return "", nil
			}
			return history, nil
		}
		s := startFake(t, Config{HealthInterval: -1}, f)
		complete(t, prompt(t, s, "my name is Zoe"))
		if got := stored(t, s); !strings.Contains(got, "Zoe") {
			t.Errorf("stored %q", got)
		}
		if w := warnings(t, s); len(w) > 0 {
			t.Errorf("warned of %q", w)
		}
	})
}

func TestAHistoryWithoutTheLastPromptIsAWarning(t *testing.T) {
	t.Parallel()
	for name, history := range map[string]string{"empty": "", "of before": "hello\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.recall = func(string, bool) (string, error) { return history, nil }
				s := startFake(t, Config{HealthInterval: -1}, f)
				complete(t, prompt(t, s, "remember 17 äpfel"))
				if w := warnings(t, s); len(w) != 1 {
					t.Errorf("warnings %q", w)
				}
				inOrder(t, logOf(t, s), runnerscripts.TypeTranscriptChanged, runnerscripts.TypeLog, runnerscripts.TypeQueryCompleted)
			})
		})
	}
}

func TestWhatAnAgentWritesWhenItEndsIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		first.recall = func(history string, stopped bool) (string, error) {
			if !stopped {
				return "", nil
			}
			return history, nil
		}
		s := startFake(t, Config{HealthInterval: -1}, first, second)
		complete(t, prompt(t, s, "my name is Zoe"))
		if err := s.TerminateEnvironment(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, s); !strings.Contains(got, "Zoe") {
			t.Errorf("stored %q", got)
		}
		inOrder(t, logOf(t, s), runnerscripts.TypeQueryCompleted, runnerscripts.TypeTranscriptChanged, runnerscripts.TypeEnvironmentTerminated)
	})
}

func TestTheEndOfASandboxTakesNothingFromTheStoredHistory(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(string, bool) (string, error){
		"died":   func(string, bool) (string, error) { return "", primitives.ErrUnavailable },
		"shrunk": func(string, bool) (string, error) { return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			s := startFake(t, Config{HealthInterval: -1}, f)
			complete(t, prompt(t, s, "my name is Zoe"))
			f.mu.Lock()
			f.recall = end
			f.mu.Unlock()
			if err := s.TerminateEnvironment(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, s); !strings.Contains(got, "Zoe") {
				t.Errorf("stored %q", got)
			}
			if n := count(logOf(t, s), runnerscripts.TypeError); n > 0 {
				t.Errorf("%d errors of what was stored before", n)
			}
		})
	}
}

func TestLongTranscriptsShareTheirPieces(t *testing.T) {
	t.Parallel()
	f := newFake()
	text := strings.Repeat("0123456789abcdef", transcriptPiece/8) // two pieces and a little
	f.recall = func(history string, _ bool) (string, error) { return text + history, nil }
	st := &countingStore{Store: store.NewMemory()}
	s := startFake(t, Config{HealthInterval: -1, Store: st}, f)
	complete(t, prompt(t, s, "one"))
	if got := stored(t, s); !strings.HasPrefix(got, text) || !strings.HasSuffix(got, "one\n") {
		t.Errorf("stored %d bytes, which end in %q", len(got), got[max(len(got)-20, 0):])
	}
	first := st.bytes()
	complete(t, prompt(t, s, "two"))
	if got := stored(t, s); !strings.HasPrefix(got, text) || !strings.Contains(got, "two") {
		t.Error("the second prompt is not stored")
	}
	if more := st.bytes() - first; first < 2*transcriptPiece || more > transcriptPiece {
		t.Errorf("the first checkpoint took %d bytes, the second %d", first, more)
	}
}

// countingStore counts the bytes of distinct blobs.
type countingStore struct {
	store.Store
	mu    sync.Mutex
	sizes map[store.Digest]int
}

func (c *countingStore) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	var sizes []int
	digests, err := c.Store.PutBlobs(ctx, id, func(yield func(io.Reader, error) bool) {
		for r, err := range contents {
			var data []byte
			if err == nil {
				data, err = io.ReadAll(r)
			}
			sizes = append(sizes, len(data))
			if !yield(bytes.NewReader(data), err) {
				return
			}
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sizes == nil {
		c.sizes = make(map[store.Digest]int)
	}
	for i, d := range digests {
		c.sizes[d] = sizes[i]
	}
	return digests, err
}

func (c *countingStore) bytes() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, size := range c.sizes {
		n += size
	}
	return n
}
