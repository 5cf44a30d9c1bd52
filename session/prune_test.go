package session

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// changing is a sandbox with a file that changes each minute, and with a copy of its first content.
type changing struct {
	*fakeSandbox
	began time.Time
}

const changingSize = 10_000

func (c changing) Files() primitives.Files { return changingFiles{began: c.began} }

type changingFiles struct {
	primitives.Files
	began time.Time
}

func (f changingFiles) content(name string) string {
	minute := int(time.Since(f.began) / time.Minute)
	if name == "copy" {
		minute = 1
	}
	return strings.Repeat(fmt.Sprintf("%10d", minute), changingSize/10)
}

func (f changingFiles) List(context.Context, string, primitives.ListOptions) ([]primitives.FileInfo, error) {
	var infos []primitives.FileInfo
	for _, name := range []string{"changes", "copy"} {
		infos = append(infos, primitives.FileInfo{Path: name, Size: changingSize, ModTime: f.began, Revision: f.content(name)})
	}
	return infos, nil
}

func (f changingFiles) Stat(_ context.Context, name string) (primitives.FileInfo, error) {
	return primitives.FileInfo{Path: name, Size: changingSize, ModTime: f.began, Revision: f.content(name)}, nil
}

func (c changing) Pack(_ context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	f := changingFiles{began: c.began}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range opts.Only {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: changingSize, Mode: 0o644})
		if _, werr := io.WriteString(w, f.content(name)); err != nil || werr != nil {
			return nil, errors.Join(err, werr)
		}
	}
	return io.NopCloser(&b), w.Close()
}

// lastingConfig is that of a session each of whose queries lasts some minutes and a half.
func lastingConfig(minutes int) (Config, createFunc) {
	return fakeConfig(Config{HealthInterval: -1, Store: &removals{Store: store.NewMemory()}, KeepPeriodic: 4}),
		func(context.Context, environment.Config) (sandbox, error) {
			f := newFake()
			f.query = func(_ context.Context, q environment.Query, yield func(runnerscripts.Event, error) bool) {
				time.Sleep(time.Duration(minutes)*time.Minute + 30*time.Second)
				yield(completed(q, runnerscripts.StopEndTurn), nil)
			}
			f.recall = func(string, bool) (string, error) { return "at " + time.Now().String(), nil }
			return changing{f, time.Now()}, nil
		}
}

// removals is a store that may fail to remove blobs, and remembers what it was given.
type removals struct {
	store.Store
	put, removed []store.Digest
	fails        error
}

func (r *removals) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	digests, err := r.Store.PutBlobs(ctx, id, contents)
	r.put = append(r.put, digests...)
	return digests, err
}

func (r *removals) RemoveBlobs(ctx context.Context, id string, digests ...store.Digest) error {
	if r.fails != nil {
		return r.fails
	}
	r.removed = append(r.removed, digests...)
	return r.Store.RemoveBlobs(ctx, id, digests...)
}

// checkPruned fails unless exactly these checkpoints are pruned, and nothing else lacks anything.
func checkPruned(t *testing.T, s *AgentSession, want ...int) {
	t.Helper()
	st, err := ReadState(t.Context(), s.store, s.id) // as another program sees it
	if err != nil {
		t.Fatal(err)
	}
	if got := st.pruned(); !slices.Equal(got, want) {
		t.Errorf("pruned %v, want %v", got, want)
	}
	for _, c := range st.Checkpoints {
		if c.Pruned {
			continue
		}
		if err := workspace.Pack(t.Context(), s.blobs(), workspace.Digest(c.Workspace), nil, io.Discard); err != nil {
			t.Errorf("the files of checkpoint %d: %v", c.Number, err)
		}
		if _, err := s.readBlobs(t.Context(), store.Digest(c.Transcript)); c.Transcript != "" && err != nil {
			t.Errorf("the transcript of checkpoint %d: %v", c.Number, err)
		}
	}
}

func TestOldPeriodicCheckpointsArePruned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, create := lastingConfig(10)
		s, err := open(t.Context(), cfg, create)
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, s)
		complete(t, prompt(t, s, "long"))
		// 1 is that of the start, 12 that of the query.
		checkPruned(t, s, 2, 3, 4, 5, 6, 7)
		var freed int64
		for _, ev := range logOf(t, s) {
			if ev.Type == runnerscripts.TypeCheckpointsPruned {
				freed += payload[runnerscripts.CheckpointsPruned](t, ev).Freed
			}
		}
		// Six contents but the first one, which is that of the copy, and six listings.
		if freed < 5*changingSize || freed > 5*changingSize+6*1000 {
			t.Errorf("%d bytes were freed", freed)
		}
		var stored int64
		for _, c := range checkpoints(t, s) {
			stored += c.Stored
		}
		if st, err := s.State(t.Context()); err != nil || st.Size < stored-freed || st.Size > stored-freed+20_000 {
			t.Errorf("the session has %d bytes, %v, after %d were stored and %d freed", st.Size, err, stored, freed)
		}

		_, forkErr := s.ForkFrom(t.Context(), 3, 1)
		_, changesErr := s.Changes(t.Context(), 3, 0)
		for what, err := range map[string]error{"rewind": s.Rewind(t.Context(), 3), "fork": forkErr, "changes": changesErr} {
			if !errors.Is(err, ErrPruned) || !strings.HasSuffix(err.Error(), "checkpoint 3 was a periodic one; use one of those next to it: 1, 8") {
				t.Errorf("%s: %v", what, err)
			}
		}
		copies, err := s.ForkFrom(t.Context(), 9, 1) // older than most of the events
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, copies[0])
		checkPruned(t, copies[0], 2, 3, 4, 5, 6, 7)
		complete(t, prompt(t, copies[0], "the copy"))
		if err := s.Rewind(t.Context(), 8); err != nil {
			t.Errorf("rewind to one that was kept: %v", err)
		}
	})
}

// A program that dies has told what it prunes, and the next one removes it.
func TestPruningIsFinishedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, create := lastingConfig(6)
		blobs := cfg.Store.(*removals)
		blobs.fails = errors.New("the program dies")
		s, err := open(t.Context(), cfg, create)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, prompt(t, s, "long"))
		checkPruned(t, s, 2, 3)
		if err := s.Close(); err != nil || len(blobs.removed) != 0 {
			t.Fatalf("removed %v, close: %v", blobs.removed, err)
		}
		blobs.fails, cfg.ID = nil, s.ID()
		if s, err = open(t.Context(), cfg, create); err != nil {
			t.Fatal(err)
		}
		closeLater(t, s)
		complete(t, prompt(t, s, "on"))
		checkPruned(t, s, 2, 3, 4, 5, 6, 7, 9, 10)
		kept := make(workspace.Sizes)
		for _, c := range checkpoints(t, s) {
			if !c.Pruned {
				if err := s.reach(t.Context(), c.Checkpoint, nil, kept); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, d := range blobs.put {
			if _, err := blobs.Blob(t.Context(), s.ID(), d); !kept.Has(workspace.Digest(d)) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("blob %s is left: %v", d, err)
			}
		}
	})
}

func TestOnlyOldPeriodicCheckpointsArePrunable(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var st State
	add := func(reason runnerscripts.CheckpointReason, parent int, age time.Duration) {
		c := runnerscripts.Checkpoint{Number: len(st.Checkpoints) + 1, Parent: parent, Reason: reason}
		st.Checkpoints = append(st.Checkpoints, Checkpoint{Checkpoint: c, Time: now.Add(-age)})
		st.Checkpoint = c.Number
	}
	add(runnerscripts.CheckpointStart, 0, 48*time.Hour)
	for parent := 1; parent < 6; parent++ { // 2 to 6
		add(runnerscripts.CheckpointPeriodic, parent, 47*time.Hour)
	}
	add(runnerscripts.CheckpointPeriodic, 3, time.Hour) // 7, after a rewind from 6 to 3
	add(runnerscripts.CheckpointQuery, 7, time.Hour)
	add(runnerscripts.CheckpointPeriodic, 8, 0)
	add(runnerscripts.CheckpointPeriodic, 9, 0) // 10, the head
	for keep, want := range map[int][]int{100: {2, 4, 5}, 3: {2, 4, 5}, 2: {2, 4, 5, 7}, 1: {2, 4, 5, 7, 9}} {
		if got := st.prunable(keep, now); !slices.Equal(got, want) {
			t.Errorf("of %d to keep: %v, want %v", keep, got, want)
		}
	}
	st.Checkpoint = 1 // by a rewind, which promises that 10 can be returned to
	if got := st.prunable(0, now); !slices.Equal(got, []int{2, 4, 5, 7, 9}) {
		t.Errorf("after a rewind: %v", got)
	}
	st.Checkpoint = 10
	st.Checkpoints[3].Pruned = true
	if got := st.prunable(2, now); !slices.Equal(got, []int{2, 5, 7}) {
		t.Errorf("after one was pruned: %v", got)
	}
}
