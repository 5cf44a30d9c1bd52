package sqlite

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

var cuts = flag.Int("cuts", 25, "how many power cuts to simulate for each durability")

// acked says that an event was acknowledged.
type acked struct {
	session string
	seq     uint64
}

const (
	sessionsOfCuts = 3
	queriesOfCuts  = 12
	eventsOfQuery  = 25 // the last one ends the query
)

func eventOfCuts(seq uint64) runnerscripts.Event {
	ev := numbered(seq)
	ev.SessionID = ""
	if seq%eventsOfQuery == 0 {
		ev.Type = runnerscripts.TypeQueryCompleted
	}
	return ev
}

// recordWork records sessions that work at the same time.
func recordWork(t *testing.T, durability Durability) *recordedDisk {
	t.Helper()
	d := record(t)
	s, err := Config{Durability: durability, vfs: diskName}.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range sessionsOfCuts {
		wg.Go(func() {
			id := fmt.Sprint(i)
			if err := s.Create(t.Context(), store.Record{ID: id}); err != nil {
				t.Error(err)
			}
			for seq := uint64(1); seq <= queriesOfCuts*eventsOfQuery; seq++ {
				if err := s.Append(t.Context(), id, eventOfCuts(seq)); err != nil {
					t.Error(err)
				}
				d.mark(acked{id, seq})
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return d
}

// lostTo returns how many acknowledged events a store has lost, and how many of them it had
// promised to keep. It fails unless the store is whole.
func lostTo(t *testing.T, dir string, log []operation, durability Durability) (lost, broken uint64) {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	told, promised := make(map[string]uint64), make(map[string]uint64)
	for _, op := range log {
		a, ok := op.mark.(acked)
		if !ok {
			continue
		}
		told[a.session] = a.seq
		if durability == DurabilityEvent || durability == DurabilityQuery && a.seq%eventsOfQuery == 0 {
			promised[a.session] = a.seq
		}
	}
	for id := range told {
		next := uint64(1)
		for ev, err := range s.Events(t.Context(), id, 1) {
			if errors.Is(err, store.ErrNotFound) {
				break
			}
			if err != nil || ev.Seq != next || string(ev.Payload) != string(eventOfCuts(next).Payload) {
				t.Fatalf("session %s: event %d is %+v, %v", id, next, ev, err)
			}
			next++
		}
		lost += told[id] - min(next-1, told[id])
		broken += promised[id] - min(next-1, promised[id])
	}
	return lost, broken
}

// The cuts of the fast store show that the simulation cuts: they lose events that the other levels
// promise to keep.
func TestPowerCuts(t *testing.T) {
	for _, durability := range []Durability{DurabilityFast, DurabilityQuery, DurabilityEvent} {
		t.Run(string(durability), func(t *testing.T) {
			d := recordWork(t, durability)
			first := slices.IndexFunc(d.log, func(op operation) bool { return op.kind == marked })
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			var losses []uint64
			for range *cuts {
				n := first + 1 + random.IntN(len(d.log)-first-1)
				dir := t.TempDir()
				d.afterCut(t, dir, n, random, []float64{0, 0.5, 0.95}[random.IntN(3)])
				lost, broken := lostTo(t, dir, d.log[:n], durability)
				if broken > 0 {
					t.Errorf("seed %d, %d operations: %d events are lost that were promised to be on the disk", seed, n, broken)
				}
				losses = append(losses, lost)
			}
			slices.Sort(losses)
			t.Logf("%d cuts: %d events lost in the median, %d at most", *cuts, losses[len(losses)/2], losses[len(losses)-1])
			if most := losses[len(losses)-1]; durability == DurabilityFast && most <= eventsOfQuery*sessionsOfCuts {
				t.Errorf("the fast store lost %d events at most, so the cuts cut nothing", most)
			}
		})
	}
}

// The files of a removed session are gone only when no power cut brings it back.
func TestAPowerCutBringsNoSessionBackWithoutItsBlobs(t *testing.T) {
	for name, remove := range map[string]func(s *Store, d store.Digest) error{
		"session": func(s *Store, _ store.Digest) error { return s.Delete(t.Context(), "s") },
		"blob":    func(s *Store, d store.Digest) error { return s.RemoveBlobs(t.Context(), "s", d) },
	} {
		t.Run(name, func(t *testing.T) {
			d := record(t)
			s, err := Config{Durability: DurabilityFast, vfs: diskName}.Open(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Create(t.Context(), store.Record{ID: "s"}); err != nil {
				t.Fatal(err)
			}
			digest := put(t, s, content(3))
			execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)") // the session is on the disk
			d.probe = func() any {
				_, err := os.Stat(s.file(rawDigest(digest)))
				return errors.Is(err, fs.ErrNotExist)
			}
			if err := remove(s, digest); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			tried := false
			for n, op := range d.log {
				if op.mark != true {
					continue
				}
				tried = true
				dir := t.TempDir()
				d.afterCut(t, dir, n, rand.New(rand.NewPCG(0, 0)), 0)
				if err := os.MkdirAll(filepath.Join(dir, blobFolder), 0o700); err != nil {
					t.Fatal(err)
				}
				again := opened(t, dir)
				if _, err := again.Blob(t.Context(), "s", digest); !errors.Is(err, store.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%d operations: the blob is gone, and the session has it: %v", n, err)
				}
			}
			if !tried {
				t.Error("the file is still there")
			}
		})
	}
}
