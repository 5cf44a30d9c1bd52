package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/agentenv-dev/agentenv/primitives"
)

// tail reads an output file, which grows until the durable command has ended.
type tail struct {
	d    *durable
	f    *os.File
	shut chan struct{}
	once sync.Once
	// still makes the tail end after the next left bytes, even if the command prints more.
	still bool
	left  int64
	rest  int64 // bytes up to the limit; one byte beyond it marks lost output
	lost  bool  // that byte was read
}

// openTail opens one of the output files at an offset. If still is true the tail ends where the
// file ends now. If output was lost the tail ends with primitives.ErrLimit.
func (d *durable) openTail(name string, from int64, still bool) (*tail, error) {
	f, err := openRegular(filepath.Join(d.dir, name), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (from < 0 || from > min(info.Size(), primitives.MaxDurableOutput)) {
		err = fmt.Errorf("%w: offset %d of %s, which has %d bytes", fs.ErrInvalid, from, name, info.Size())
	}
	if err == nil {
		_, err = f.Seek(from, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &tail{
		d: d, f: f, shut: make(chan struct{}), still: still,
		left: info.Size() - from, rest: primitives.MaxDurableOutput - from,
	}, nil
}

// tailPause is the polling interval where the system sends no notifications of changes.
const tailPause = 50 * time.Millisecond

func (t *tail) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if t.lost {
		return 0, t.truncated()
	}
	n, err := t.read(p)
	if t.rest -= int64(n); t.rest >= 0 {
		return n, err
	}
	t.lost = true
	if n = max(n+int(t.rest), 0); n > 0 {
		return n, nil
	}
	return 0, t.truncated()
}

func (t *tail) truncated() error {
	return t.d.sb.fail("read", t.d.id, fmt.Errorf("%w: the command has printed more than the %d MiB that are kept of each stream",
		primitives.ErrLimit, primitives.MaxDurableOutput>>20))
}

// read reads the file, including the byte beyond the limit.
func (t *tail) read(p []byte) (int, error) {
	if t.still {
		if t.left == 0 {
			return 0, io.EOF
		}
		n, err := t.f.Read(p[:min(int64(len(p)), t.left)])
		t.left -= int64(n)
		return n, err
	}
	for {
		// Take both before reading: the bell rings for output that arrives during the read.
		rung := t.d.bell.next()
		over := isClosed(t.d.done)
		n, err := t.f.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) || over {
			return n, err
		}
		var timer *time.Timer
		var tick <-chan time.Time
		if !t.d.bell.works() {
			timer = time.NewTimer(tailPause)
			tick = timer.C
		}
		select {
		case <-rung:
		case <-t.d.done:
		case <-tick:
		case <-t.shut:
			err = os.ErrClosed
		}
		if timer != nil {
			timer.Stop()
		}
		if errors.Is(err, os.ErrClosed) {
			return 0, err
		}
	}
}

func (t *tail) Close() error {
	t.once.Do(func() {
		close(t.shut)
		_ = t.f.Close()
	})
	return nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// bell reports changes in a folder.
type bell struct {
	watcher *fsnotify.Watcher // nil if the system allows no more watchers
	ended   chan struct{}

	mu   sync.Mutex
	ring chan struct{}
}

func newBell(dir string) *bell {
	b := &bell{ended: make(chan struct{}), ring: make(chan struct{})}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(dir); err != nil {
			_ = w.Close()
		}
	}
	if err != nil {
		close(b.ended)
		return b
	}
	b.watcher = w
	go b.listen()
	return b
}

func (b *bell) listen() {
	defer close(b.ended)
	for {
		select {
		case _, ok := <-b.watcher.Events:
			if !ok {
				return
			}
		case _, ok := <-b.watcher.Errors:
			// After an overflow readers must look again, too.
			if !ok {
				return
			}
		}
		b.mu.Lock()
		close(b.ring)
		b.ring = make(chan struct{})
		b.mu.Unlock()
	}
}

func (b *bell) works() bool { return b.watcher != nil }

// next returns a channel that is closed at the next change.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ring
}

func (b *bell) close() {
	if b.watcher != nil {
		_ = b.watcher.Close()
	}
	<-b.ended
}
