// Package watch is the watching half of the engine: it reports changes below a
// directory of the machine it runs on.
package watch

import (
	"context"
	"errors"
	"iter"

	"github.com/agentenv-dev/agentenv/primitives"
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
	// after Done was closed only.
	Done <-chan struct{}
	Err  func() error
}

// Watch does what primitives.EnvironmentPrimitive.Watch promises. Until the
// sequence has ended, or ctx or cfg.Done, the watch holds a file descriptor and
// a goroutine.
func Watch(ctx context.Context, cfg Config) (iter.Seq2[primitives.WatchEvent, error], error) {
	return nil, &primitives.Error{Op: "watch", Backend: cfg.Backend, Target: cfg.Name, Err: errors.ErrUnsupported}
}
