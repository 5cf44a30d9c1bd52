// Package watch reports changes below a directory of the machine that it runs on.
//
// It keeps a tree of the existing names, and a kernel watch on every directory that is not ignored.
// It compares the kernel's events with the tree. So it can list a new directory right after
// watching it without reporting anything twice, follow renamed directories, and find the changes
// that the kernel had to drop.
//
// All watches of a process share one inotify instance, because a user has few. The instance is read
// as soon as it has events, and each watch has a queue of its own. If that queue or the kernel's
// was full, the watch reports primitives.OpOverflow.
//
// On Linux it reads inotify directly, because fsnotify does not expose what pairs the two halves of
// a rename (its renamedFrom is private). On other systems it uses fsnotify, and a rename is a
// removal and a creation.
//
// It does not see writes through a memory mapping, or files in a new directory that are removed
// before the directory is watched.
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
	// Dir is the absolute path of the directory. Name is the path as the caller wrote it, for
	// errors.
	Dir, Name string
	// Options are the options of the caller.
	Options primitives.WatchOptions
	// Done ends the sequence when it is closed; nil means never. Err then returns the reason:
	// primitives.ErrTerminated or primitives.ErrUnavailable. It is called only after Done was
	// closed.
	Done <-chan struct{}
	Err  func() error
}

// Watch implements primitives.EnvironmentPrimitive.Watch. Until the sequence has ended, ctx is done
// or cfg.Done is closed, the watch holds a goroutine and its part of the process's inotify
// instance.
//
// After primitives.OpOverflow a file may be reported as modified although its change was reported
// before. A directory that is moved within the tree is one event. Its content moves with it and is
// reported only if Include or Ignore match it differently at its new path.
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

// start returns a watcher that is already watching.
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

// watcher is one watch. Only the loop over its events uses it, except for guard.
type watcher struct {
	cfg             Config
	include, ignore glob.Set
	src             source
	root            *node
	rootID          fileID
	nodes           map[int]*node // by watch descriptor
	raws            []raw         // read but not handled
	quiet           time.Time     // when the kernel's queue was last known to be empty
	queue           []change      // found but not reported
	wait            debouncer
	dir             int // the watched directory while open, else zero; see openRoot

	used        atomic.Bool
	stop, ended chan struct{} // used by guard
}

// change is an event before its file is examined.
type change struct {
	op         primitives.WatchOp
	path, from string
	dir        bool
}

// guard closes the source when the watch must end. That ends a read of the loop, and releases the
// watch even if the loop was never started.
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

// errLeft says that the caller has ended the loop.
var errLeft = errors.New("left")

// loop reports changes until the watch ends. The error is for the sequence.
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
			// Report earlier changes first.
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

// read appends the kernel's changes to w.raws. It waits until the given time; zero means no
// deadline.
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
	// While an overflow is not handled, keep the time before it.
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
