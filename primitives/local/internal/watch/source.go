package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// source is the kernel's notification of changes in single directories.
type source interface {
	// add watches an open directory, which is also at path, and returns a watch descriptor. The
	// descriptor is the same for a directory that is already watched.
	add(dir int, path string) (wd int, err error)
	// remove stops watching a directory.
	remove(wd int)
	// read returns changes in order. It waits for the first one. The error is
	// os.ErrDeadlineExceeded at the given time (zero means never), or os.ErrClosed. drained reports
	// that no more changes were queued.
	read(until time.Time) (changes []raw, drained bool, err error)
	// close ends a read in progress. It may be called again, and during every other call.
	close() error
}

// raw is a change of one name in a watched directory.
type raw struct {
	kind   rawKind
	wd     int
	name   string
	dir    bool
	cookie uint32    // pairs rawFrom with rawTo
	read   time.Time // when it was read; watcher.read sets it
}

type rawKind uint8

const (
	rawNone     rawKind = iota // handled already
	rawCreate                  // the name was created
	rawDelete                  // the name was removed
	rawModify                  // the file was changed
	rawFrom                    // the name was moved away
	rawTo                      // the name was moved here
	rawGone                    // the watched directory itself was removed or moved
	rawEnd                     // the watch has ended
	rawOverflow                // changes were dropped
)

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

func invalid(text string) error { return fmt.Errorf("%w: %s", fs.ErrInvalid, text) }

func limitReached() error {
	return fmt.Errorf("raise fs.inotify.max_user_watches (sysctl), or ignore folders with WatchOptions.Ignore: %w: %w", primitives.ErrLimit, unix.ENOSPC)
}
