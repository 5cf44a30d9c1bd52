//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
)

// stages are the times of one container's life: ready and first count from its creation, and
// remove is the duration of the removal.
type stages struct{ ready, first, remove time.Duration }

// lifeRounds is how many lives of each kind are measured; the first does not count. It is high
// because the engine's times scatter by a tenth, and some targets are two percent.
const lifeRounds = 41

// benchDockerLife compares the life of a sandbox with that of a container: from its creation to
// the first command, and its removal.
func benchDockerLife(ctx context.Context) (rows []row, err error) {
	terminate := func(b box) error {
		_, err := b.Terminate(ctx)
		return err
	}
	err = withEngine(ctx, func(e *engine) error {
		lives := []func() (stages, error){
			func() (stages, error) { return e.apiLife(ctx) },
			func() (stages, error) { return e.commandLife(ctx) },
		}
		for _, w := range ways() {
			lives = append(lives, func() (stages, error) { return e.boxLife(ctx, w, nil, terminate) })
		}
		// The default has a network of its own, for which the engine runs a name server.
		own := func(s *environment.Sandbox) { s.Network = "" }
		lives = append(lives, func() (stages, error) { return e.boxLife(ctx, ways()[0], own, terminate) })
		// Measure the engine's share for the same containers.
		lives = append(lives, func() (stages, error) {
			return e.boxLife(ctx, ways()[0], nil, func(b box) error { return e.remove(ctx, b.ID()) })
		})
		took := make([][]stages, len(lives))
		for round := range lifeRounds {
			for k := range lives {
				i := (round + k) % len(lives) // so that none always follows the same other
				s, err := lives[i]()
				if err != nil {
					return err
				}
				if round > 0 {
					took[i] = append(took[i], s)
				}
			}
		}
		for i, w := range ways() {
			rows = append(rows, lifeRows(w, took[0], took[1], took[2+i])...)
		}
		ready := func(s stages) time.Duration { return s.ready }
		rows = append(rows, ratioRow("docker create to ready on the network of sandboxes", "ContainerCreate and Start", "ms", lower,
			millis(middle(took[0], ready)), millis(middle(took[len(took)-2], ready)), 1.4))
		remove := func(s stages) time.Duration { return s.remove }
		rows = append(rows, ratioRow("docker ContainerRemove of a sandbox", "ContainerRemove with force", "ms", lower,
			millis(middle(took[0], remove)), millis(middle(took[len(took)-1], remove)), 1.02))
		return nil
	})
	return rows, err
}

func lifeRows(w way, api, cli, ours []stages) []row {
	ready := func(s stages) time.Duration { return s.ready }
	first := func(s stages) time.Duration { return s.first }
	remove := func(s stages) time.Duration { return s.remove }
	compare := func(name, base string, b []stages, of func(stages) time.Duration, target float64) row {
		return ratioRow(name+" over "+w.name, base, "ms", lower, millis(middle(b, of)), millis(middle(ours, of)), target)
	}
	return []row{
		compare("docker create to ready", "ContainerCreate and Start", api, ready, 1.02),
		compare("docker create to first exec", "client API", api, first, 0.80),
		compare("docker create to first exec", "docker run and docker exec", cli, first, 0.67),
		compare("docker terminate", "ContainerRemove with force", api, remove, 1.02),
	}
}

func middle(all []stages, of func(stages) time.Duration) time.Duration {
	d := make([]time.Duration, len(all))
	for i, s := range all {
		d[i] = of(s)
	}
	return median(d)
}

func (e *engine) apiLife(ctx context.Context) (s stages, err error) {
	start := time.Now()
	id, err := e.create(ctx)
	if err != nil {
		return s, err
	}
	s.ready = time.Since(start)
	if err := e.apiExec(ctx, id, io.Discard, "/bin/true"); err != nil {
		return s, err
	}
	s.first = time.Since(start)
	start = time.Now()
	err = e.remove(ctx, id)
	s.remove = time.Since(start)
	return s, err
}

func (e *engine) commandLife(ctx context.Context) (s stages, err error) {
	start := time.Now()
	id, err := e.command(ctx, "run", "--detach", "--label", benchLabel+"="+e.run, e.image, "sleep", "infinity")
	if err != nil {
		return s, err
	}
	id = strings.TrimSpace(id)
	s.ready = time.Since(start)
	if _, err := e.command(ctx, "exec", id, "/bin/true"); err != nil {
		return s, err
	}
	s.first = time.Since(start)
	return s, e.remove(ctx, id)
}

func (e *engine) boxLife(ctx context.Context, w way, change func(*environment.Sandbox), end func(box) error) (s stages, err error) {
	start := time.Now()
	b, err := e.open(ctx, w, change)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	s.ready = time.Since(start)
	if err := runTrue(ctx, b); err != nil {
		return s, err
	}
	s.first = time.Since(start)
	start = time.Now()
	err = end(b)
	s.remove = time.Since(start)
	return s, err
}

// crowd is how many containers are alive at once.
const crowd = 50

// benchDockerCrowd creates many containers at once and measures the cost of each.
func benchDockerCrowd(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		began := time.Now()
		ids, err := all(func() (string, error) { return e.create(ctx) })
		if err != nil {
			return err
		}
		base := time.Since(began)
		var removed sync.WaitGroup
		for _, id := range ids {
			removed.Go(func() { _ = e.remove(ctx, id) }) // clean retries it
		}
		removed.Wait()
		// A first crowd pays what a program pays once, however many sessions it has.
		if _, err := e.crowd(ctx, ways()[0], base); err != nil {
			return err
		}
		for _, w := range ways() {
			r, err := e.crowd(ctx, w, base)
			if err != nil {
				return err
			}
			rows = append(rows, r...)
		}
		return nil
	})
	return rows, err
}

// all calls do for each of a crowd at once.
func all[T any](do func() (T, error)) ([]T, error) {
	made, errs := make([]T, crowd), make([]error, crowd)
	var busy sync.WaitGroup
	for i := range crowd {
		busy.Go(func() { made[i], errs[i] = do() })
	}
	busy.Wait()
	return made, errors.Join(errs...)
}

func (e *engine) crowd(ctx context.Context, w way, base time.Duration) (rows []row, err error) {
	before := ownBytes()
	began := time.Now()
	boxes, err := all(func() (box, error) {
		b, err := e.open(ctx, w, nil)
		if err == nil {
			err = runTrue(ctx, b)
		}
		return b, err
	})
	took := time.Since(began)
	defer func() {
		for _, b := range boxes {
			if b.Sandbox != nil {
				err = errors.Join(err, b.Close())
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	side := (ownBytes() - before) / crowd / 1024
	rows = append(rows,
		ratioRow(fmt.Sprintf("docker %d at once to first exec over %s", crowd, w.name), "ContainerCreate and Start", "s", lower, base.Seconds(), took.Seconds(), 1.02),
		limitRow("docker idle session over "+w.name+", in this program", "KiB", lower, side, 16))
	guest, err := e.guestMemory(ctx, boxes)
	if err != nil {
		return rows, err
	}
	if guest > 0 {
		rows = append(rows, limitRow("docker idle session over "+w.name+", in the container", "MiB", lower, guest, 1))
	}
	var ended sync.WaitGroup
	errs := make([]error, len(boxes))
	for i, b := range boxes {
		ended.Go(func() { _, errs[i] = b.Terminate(ctx) })
	}
	ended.Wait()
	return rows, errors.Join(errs...)
}

// ownBytes returns what this program uses of its heap and stacks when it is idle. It collects
// garbage repeatedly: each collection halves the stacks that goroutines once needed, and frees
// what finalizers have kept.
func ownBytes() float64 {
	var m runtime.MemStats
	for least := uint64(math.MaxUint64); ; {
		runtime.GC()
		runtime.ReadMemStats(&m)
		now := m.HeapAlloc + m.StackInuse
		if now >= least {
			return float64(least)
		}
		least = now
	}
}

// guestMemory returns the mean of the private and shared memory of a container's processes, in
// MiB; zero if this user may not read it.
func (e *engine) guestMemory(ctx context.Context, boxes []box) (float64, error) {
	total := 0
	for _, b := range boxes {
		found, err := e.ContainerTop(ctx, b.ID(), []string{"-o", "pid"})
		if err != nil {
			return 0, err
		}
		for _, process := range found.Processes {
			data, err := os.ReadFile("/proc/" + process[0] + "/smaps_rollup")
			if err != nil {
				return 0, nil // not root
			}
			_, pss, _ := strings.Cut(string(data), "\nPss:")
			kib, err := strconv.Atoi(strings.Fields(pss)[0])
			if err != nil {
				return 0, err
			}
			total += kib
		}
	}
	return float64(total) / 1024 / float64(len(boxes)), nil
}
