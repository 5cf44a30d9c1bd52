// Package agenttest has helpers for the tests of all agent drivers: a sink that records events,
// and comparisons of the resulting conversations. It is for tests only.
package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// waitTime is far longer than an agent needs for one event.
const waitTime = 3 * time.Minute

// Recorder is a sink that records events. Its methods may be called from any goroutine.
// NewRecorder creates one.
type Recorder struct {
	mu     sync.Mutex
	events []runnerscripts.Event
	more   chan struct{} // closed and replaced at each event
}

// NewRecorder returns a recorder without events.
func NewRecorder() *Recorder { return &Recorder{more: make(chan struct{})} }

// Emit records an event with the current time.
func (r *Recorder) Emit(conv string, typ runnerscripts.EventType, payload any) {
	r.EmitAt(time.Now(), conv, typ, payload)
}

// EmitAt records an event with the given time.
func (r *Recorder) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	raw, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, runnerscripts.Event{Type: typ, ConversationID: conv, Payload: raw, Time: at})
	close(r.more)
	r.more = make(chan struct{})
}

// All returns the events recorded up to now, oldest first.
func (r *Recorder) All() []runnerscripts.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Wait returns the first event for which fits is true, and waits for it if necessary. The test
// fails after waitTime.
func (r *Recorder) Wait(ctx context.Context, t testing.TB, fits func(runnerscripts.Event) bool) runnerscripts.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	for n := 0; ; {
		r.mu.Lock()
		events, more := r.events, r.more
		r.mu.Unlock()
		for ; n < len(events); n++ {
			if fits(events[n]) {
				return events[n]
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("the expected event did not come; there were:\n%s", Describe(events))
		}
	}
}

// OfType returns a function for Wait that accepts the events of a type.
func OfType(typ runnerscripts.EventType) func(runnerscripts.Event) bool {
	return func(e runnerscripts.Event) bool { return e.Type == typ }
}

// Describe formats events, one per line, without slash command events.
func Describe(events []runnerscripts.Event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Type == runnerscripts.TypeCommands {
			continue
		}
		b.WriteString(e.ConversationID + " " + string(e.Type) + " " + string(e.Payload) + "\n")
	}
	return b.String()
}

// Payload decodes the payload of an event.
func Payload[T any](t testing.TB, e runnerscripts.Event) T {
	t.Helper()
	p, err := runnerscripts.Payload[T](e)
	if err != nil {
		t.Fatalf("%s: %v", e.Type, err)
	}
	return p
}

// Payloads returns the payloads of all events of a type.
func Payloads[T any](t testing.TB, events []runnerscripts.Event, typ runnerscripts.EventType) []T {
	t.Helper()
	var list []T
	for _, e := range events {
		if e.Type == typ {
			list = append(list, Payload[T](t, e))
		}
	}
	return list
}

// HasCode reports whether err is a ScriptFailure with that code.
func HasCode(err error, code runnerscripts.FailureCode) bool {
	f, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	return ok && f.Code == code
}

// NewSession returns a session of an agent with new folders.
func NewSession(t testing.TB, id, agent string) runnerscripts.Session {
	t.Helper()
	paths := primitives.PathsIn(t.TempDir())
	for _, dir := range paths.All() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return runnerscripts.Session{
		Protocol: runnerscripts.Protocol, SessionID: id, Paths: paths, Agent: runnerscripts.Agent{Name: agent},
	}
}

// WriteFile writes a file and creates the folders above it.
func WriteFile(t testing.TB, file, text string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}
