package session

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestEveryReaderSeesEveryEventOnceFromWhereItAsked(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("some text in several chunks to make events"), run("true"), say("more of it"))))
	const readers, prompts = 8, 5
	var wg sync.WaitGroup
	var got [readers][]uint64
	for i := range readers {
		wg.Go(func() {
			for ev, err := range s.Events(t.Context(), uint64(i*3)) {
				if err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				got[i] = append(got[i], ev.Seq)
				if i == 0 {
					// This reader is slower than the others: it also checks that the state
					// counts the event.
					if st, _ := s.State(t.Context()); st.LastSeq < ev.Seq {
						t.Errorf("event %d is delivered before it is counted", ev.Seq)
					}
				}
			}
		})
	}
	for range prompts {
		complete(t, prompt(t, s, "a"))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	st, _ := s.State(t.Context())
	for i, seqs := range got {
		want := max(uint64(i*3), 1)
		for _, seq := range seqs {
			if seq != want {
				t.Fatalf("reader %d: event %d where %d comes next", i, seq, want)
			}
			want++
		}
		if want != st.LastSeq+1 {
			t.Errorf("reader %d ended before event %d of %d", i, want, st.LastSeq)
		}
	}
}

func TestAReaderThatStandsStillDelaysNobody(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say(strings.Repeat("many words ", 500)))))
	first := make(chan struct{})
	release := make(chan struct{})
	read := make(chan int, 1)
	go func() {
		n := 0
		for _, err := range s.Events(t.Context(), 1) {
			if err != nil {
				t.Error(err)
				break
			}
			if n++; n == 1 {
				close(first)
				<-release
			}
		}
		read <- n
	}()
	complete(t, prompt(t, s, "a"))
	<-first
	complete(t, prompt(t, s, "b")) // although the reader is blocked at the first event
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	close(release)
	if n, want := <-read, len(logOf(t, s)); n != want {
		t.Errorf("the slow reader saw %d of %d events", n, want)
	}
}

func TestEventsAreStoredBeforeTheyAreSeen(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x"))))
	turn := prompt(t, s, "a")
	for ev, err := range turn.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.store.Load(t.Context(), s.ID()); err != nil || r.LastSeq < ev.Seq {
			t.Errorf("event %d was seen when the store had %d, %v", ev.Seq, r.LastSeq, err)
		}
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	t.Parallel()
	s := startFake(t, Config{HealthInterval: -1}, newFake())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	complete(t, prompt(t, s, "a"))
	var last error
	for _, err := range s.Events(ctx, 1) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("events after their context was done: %v", last)
	}
}

// brittle is a store whose Append can be made to fail.
type brittle struct {
	store.Store
	broken atomic.Bool
}

var errDisk = errors.New("disk is full")

func (b *brittle) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	if b.broken.Load() {
		return errDisk
	}
	return b.Store.Append(ctx, id, events...)
}

func TestASessionThatCannotBeStoredEndsAndSaysWhy(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.query = hang
	st := &brittle{Store: store.NewMemory()}
	s := startFake(t, Config{Store: st, HealthInterval: -1}, f)
	turn := prompt(t, s, "a")
	await(t, s, runnerscripts.TypeQueryStarted)
	seen := make(chan error, 1)
	go func() {
		_, err := Reduce(s.Events(t.Context(), 1))
		seen <- err
	}()
	st.broken.Store(true)
	if _, err := s.Prompt(t.Context(), "b"); !errors.Is(err, errDisk) {
		t.Errorf("prompt: %v", err)
	}
	if _, err := turn.Wait(t.Context()); !errors.Is(err, errDisk) {
		t.Errorf("the running query: %v", err)
	}
	if err := <-seen; !errors.Is(err, errDisk) {
		t.Errorf("events: %v", err)
	}
	if err := s.Close(); !errors.Is(err, errDisk) {
		t.Errorf("close: %v", err)
	}
	if !f.closed {
		t.Error("the sandbox is left")
	}
}

// patient is a sandbox whose health checks ignore their deadline. On a busy machine they may
// take longer than a HealthInterval of a few milliseconds.
type patient struct{ sandbox }

func (p patient) Healthy(ctx context.Context) error {
	return p.sandbox.Healthy(context.WithoutCancel(ctx))
}

func TestAllMethodsAtOnce(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x"), ask(write("f", "y")), run("true")))
	cfg.Environment.OnPermission = func(context.Context, runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		return allowed
	}
	cfg.WatchWorkspace = &environment.FilesOptions{}
	cfg.HealthInterval = 5 * time.Millisecond
	create := environmentCreator(nil)
	s, err := open(t.Context(), cfg, func(ctx context.Context, cfg environment.Config) (sandbox, error) {
		sb, err := create(ctx, cfg)
		return patient{sb}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	ctx := t.Context()
	var wg sync.WaitGroup
	repeat := func(n int, f func() error, fine ...error) {
		wg.Go(func() {
			for range n {
				err := f()
				ok := err == nil
				for _, target := range append(fine, ErrClosed, ErrNoEnvironment, environment.ErrClosed) {
					ok = ok || errors.Is(err, target)
				}
				if !ok {
					t.Errorf("unexpected error: %v", err)
				}
			}
		})
	}
	repeat(10, func() error {
		turn, err := s.Prompt(ctx, "a")
		if err == nil {
			_, err = turn.Wait(ctx)
		}
		return err
	}, ErrBusy)
	repeat(5, func() error { return s.Interrupt(ctx) })
	repeat(2, func() error { return s.TerminateEnvironment(ctx) })
	repeat(20, func() error { return s.SetOptions(ctx, Options{Model: "m"}) })
	repeat(20, func() error { _, err := s.State(ctx); return err })
	repeat(20, func() error {
		r, err := s.OpenFile(ctx, "f")
		if err != nil {
			return nil // the file is not written yet, or the sandbox has ended meanwhile
		}
		_, err = io.Copy(io.Discard, r)
		return errors.Join(err, r.Close())
	}, io.ErrUnexpectedEOF)
	events := make(chan error, 1)
	go func() {
		_, err := Reduce(s.Events(ctx, 0))
		events <- err
	}()
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-events; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("events: %v", err)
	}
	logOf(t, s)
}
