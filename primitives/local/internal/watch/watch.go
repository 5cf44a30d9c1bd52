// Package watch is the watching half of the engine: it reports changes below a
// directory of the machine it runs on.
//
// It keeps a tree of the names that exist, and a kernel watch on every
// directory that is not ignored. What the kernel reports is compared with the
// tree: that makes it possible to list a new directory right after watching it
// without reporting anything twice, to follow renamed directories, and, when the
// kernel had to drop changes, to find out what they were.
//
// All watches of a process share one inotify instance, because a user has few. It
// is read as soon as there is something, and each watch has a queue of what is its
// own: that it is full, or was the kernel's, is primitives.OpOverflow.
//
// On Linux inotify is read directly, because fsnotify does not hand out what
// pairs the two halves of a rename (its renamedFrom is private). Elsewhere
// fsnotify is used, and a rename is a removal and a creation.
//
// Not seen are writes through a memory mapping, and files in a new directory
// that are gone again before the directory could be watched.
package watch

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/glob"
)

// Config says what to watch.
type Config struct {
	// Backend is the name in errors.
	Backend string
	// Dir is the absolute path of the directory, Name the same as the caller
	// wrote it, for errors.
	Dir, Name string
	// Options are the caller's.
	Options primitives.WatchOptions
	// Done ends the sequence when it is closed; nil means never. Err then says
	// why: primitives.ErrTerminated or primitives.ErrUnavailable. It is called
	// only after Done was closed.
	Done <-chan struct{}
	Err  func() error
}

// Watch does what primitives.EnvironmentPrimitive.Watch promises. Until the
// sequence has ended, or ctx or cfg.Done, the watch holds a goroutine and its part
// of the process's inotify instance.
//
// After primitives.OpOverflow a file may be reported as modified although its
// change was reported before. A directory that is moved within the tree is one
// event; what is in it moves with it and is reported only as far as Include or
// Ignore see it differently at its new path.
func Watch(ctx context.Context, cfg Config) (iter.Seq2[primitives.WatchEvent, error], error) {
	w, err := start(ctx, cfg, newSource)
	if err != nil {
		return nil, cfg.fail(err)
	}
	return w.events(ctx), nil
}

func (c Config) fail(err error) error {
	return &primitives.Error{Op: "watch", Backend: c.Backend, Target: c.Name, Err: files.Classify(err)}
}

// start makes a watcher that is live.
func start(ctx context.Context, cfg Config, open func() (source, error)) (*watcher, error) {
	w := &watcher{cfg: cfg, nodes: map[int]*node{}, stop: make(chan struct{}), ended: make(chan struct{})}
	w.wait.delay = cfg.Options.Debounce
	var err error
	if w.include, err = glob.Compile("Include", cfg.Options.Include); err != nil {
		return nil, err
	}
	if w.ignore, err = glob.Compile("Ignore", cfg.Options.Ignore); err != nil {
		return nil, err
	}
	if cfg.Options.MaxContent < 0 || cfg.Options.Debounce < 0 {
		return nil, invalid("MaxContent and Debounce must not be negative")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.src, err = open(); err != nil {
		return nil, err
	}
	if err := w.plant(ctx); err != nil {
		_ = w.src.close()
		return nil, err
	}
	go w.guard(ctx)
	return w, nil
}

// watcher is one watch. Apart from guard only the loop over its events runs it.
type watcher struct {
	cfg             Config
	include, ignore glob.Set
	src             source
	root            *node
	rootID          fileID
	nodes           map[int]*node // by the kernel's number of the watch
	raws            []raw         // read and not yet handled
	quiet           time.Time     // when the kernel's queue was last known to be empty
	queue           []change      // found and not yet reported
	wait            debouncer
	dir             int // the watched directory while open, else zero; see openRoot

	used        atomic.Bool
	stop, ended chan struct{} // for guard
}

// change is an event before its file was looked at.
type change struct {
	op         primitives.WatchOp
	path, from string
	dir        bool
}

// guard closes the source when the watch must end, which wakes the loop and
// releases the watch even if the loop was never started.
func (w *watcher) guard(ctx context.Context) {
	defer close(w.ended)
	select {
	case <-ctx.Done():
	case <-w.cfg.Done:
	case <-w.stop:
	}
	_ = w.src.close()
}

func (w *watcher) events(ctx context.Context) iter.Seq2[primitives.WatchEvent, error] {
	return func(yield func(primitives.WatchEvent, error) bool) {
		if w.used.Swap(true) {
			yield(primitives.WatchEvent{}, w.cfg.fail(invalid("the events of a watch can be read once; call Watch again")))
			return
		}
		defer func() {
			w.closeRoot()
			close(w.stop)
			<-w.ended
		}()
		if err := w.loop(ctx, yield); err != nil {
			yield(primitives.WatchEvent{}, w.cfg.fail(err))
		}
	}
}

// errLeft says that the caller has left the loop.
var errLeft = errors.New("left")

// loop reports until the watch ends. The error is for the sequence.
func (w *watcher) loop(ctx context.Context, yield func(primitives.WatchEvent, error) bool) error {
	for {
		err := w.turn(ctx, yield)
		switch {
		case err == nil:
			continue
		case errors.Is(err, errLeft) || ctx.Err() != nil:
			return nil
		case isClosed(w.cfg.Done):
			return w.cfg.Err()
		case errors.Is(err, fs.ErrNotExist):
			// What was found before comes before.
			last := append(w.wait.add(w.queue, time.Now()), w.wait.all()...)
			if rerr := w.report(ctx, last, yield); rerr != nil {
				return nil
			}
		}
		return err
	}
}

// turn waits for changes once and reports them.
func (w *watcher) turn(ctx context.Context, yield func(primitives.WatchEvent, error) bool) error {
	if len(w.raws) == 0 {
		w.closeRoot()
		if err := w.read(w.wait.next()); err != nil {
			return err
		}
	}
	for len(w.raws) > 0 {
		ev := w.raws[0]
		w.raws = w.raws[1:]
		err := w.handle(ev)
		if err != nil {
			return err
		}
		if len(w.queue) == 0 {
			continue
		}
		now := time.Now()
		ready := w.wait.add(w.queue, now)
		w.queue = w.queue[:0]
		if err := w.report(ctx, append(ready, w.wait.due(now)...), yield); err != nil {
			return err
		}
	}
	return w.report(ctx, w.wait.due(time.Now()), yield)
}

// read takes what the kernel has, waiting until the given time; zero means for
// as long as it takes.
func (w *watcher) read(until time.Time) error {
	now := time.Now()
	raws, drained, err := w.src.read(until)
	came := time.Now()
	for i := range raws {
		raws[i].read = came
	}
	w.raws = append(w.raws, raws...)
	if err != nil && !isTimeout(err) {
		return err
	}
	// With an overflow still to be handled the time before it counts.
	if drained && !slices.ContainsFunc(w.raws, func(r raw) bool { return r.kind == rawOverflow }) {
		w.quiet = now
	}
	return nil
}

func (w *watcher) report(ctx context.Context, changes []change, yield func(primitives.WatchEvent, error) bool) error {
	for _, c := range changes {
		if c.op != primitives.OpOverflow && ctx.Err() != nil {
			return ctx.Err()
		}
		if !yield(w.describe(c), nil) {
			return errLeft
		}
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
