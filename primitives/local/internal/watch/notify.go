package watch

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// notify is the source for systems without inotify. It cannot pair the halves of a rename. It is
// built on every system, so that it is tested on every system.
type notify struct {
	watcher *fsnotify.Watcher

	mu    sync.Mutex
	wds   map[string]int
	paths map[int]string
	last  int
}

func newNotify() (source, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &notify{watcher: w, wds: map[string]int{}, paths: map[int]string{}}, nil
}

func (s *notify) add(_ int, path string) (int, error) {
	if err := s.watcher.Add(path); err != nil {
		if errors.Is(err, fsnotify.ErrClosed) {
			err = os.ErrClosed
		}
		return -1, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wd, ok := s.wds[path]
	if !ok {
		s.last++
		wd = s.last
		s.wds[path], s.paths[wd] = wd, path
	}
	return wd, nil
}

func (s *notify) remove(wd int) {
	s.mu.Lock()
	path := s.paths[wd]
	delete(s.wds, path)
	delete(s.paths, wd)
	s.mu.Unlock()
	_ = s.watcher.Remove(path) // fails if the directory is gone, together with its watch
}

func (s *notify) read(until time.Time) ([]raw, bool, error) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case ev, ok := <-s.watcher.Events:
		if !ok {
			return nil, false, os.ErrClosed
		}
		return s.translate(ev), len(s.watcher.Events) == 0, nil
	case err, ok := <-s.watcher.Errors:
		switch {
		case !ok:
			return nil, false, os.ErrClosed
		case errors.Is(err, fsnotify.ErrEventOverflow):
			return []raw{{kind: rawOverflow}}, false, nil
		}
		return nil, false, err
	case <-timeout:
		return nil, false, os.ErrDeadlineExceeded
	}
}

func (s *notify) close() error { return s.watcher.Close() }

// translate returns the raw changes for an event, with the watch of its directory.
func (s *notify) translate(ev fsnotify.Event) []raw {
	s.mu.Lock()
	self, isWatched := s.wds[ev.Name]
	wd, ok := s.wds[filepath.Dir(ev.Name)]
	s.mu.Unlock()
	var raws []raw
	gone := ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)
	if isWatched && gone {
		raws = append(raws, raw{kind: rawGone, wd: self})
	}
	if !ok {
		return raws
	}
	r := raw{wd: wd, name: filepath.Base(ev.Name)}
	switch {
	case gone:
		r.kind = rawDelete
	case ev.Has(fsnotify.Create):
		info, err := os.Lstat(ev.Name)
		if err != nil {
			return raws // removed again, which the next event reports
		}
		r.kind, r.dir = rawCreate, info.IsDir()
	default:
		r.kind = rawModify
	}
	return append(raws, r)
}
