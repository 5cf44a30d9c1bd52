package primitives

import (
	"context"
	"errors"
)

// Snapshotter is implemented by primitives that can keep the state of their
// files. Call [Snapshot].
type Snapshotter interface {
	// Snapshot does what the function [Snapshot] promises.
	Snapshot(ctx context.Context) (id string, err error)
}

// Forker is implemented by primitives that can be copied. Call [Fork].
type Forker interface {
	// Fork does what the function [Fork] promises.
	Fork(ctx context.Context, n int) ([]EnvironmentPrimitive, error)
}

// Pauser is implemented by primitives that can be frozen. Call [Pause] and
// [Resume].
type Pauser interface {
	// Pause does what the function [Pause] promises.
	Pause(ctx context.Context) error
	// Resume does what the function [Resume] promises.
	Resume(ctx context.Context) error
}

// Snapshot keeps the files of a sandbox as they are now, with permissions, links and
// times to the second at least, and returns the snapshot's identity, from which the backend makes new sandboxes: see the
// backend's Config. Processes are no part of it and go on, though they may have to
// wait while the files are read, so that these fit together. Files that are not
// the sandbox's own, such as mounted folders, are not in it. A snapshot stays
// until it is removed, also when the sandbox is gone. When ctx is done before the
// snapshot is complete nothing is left of it.
//
// A sandbox that cannot be kept is errors.ErrUnsupported, see
// Capabilities.Snapshot.
func Snapshot(ctx context.Context, p EnvironmentPrimitive) (id string, err error) {
	if s, ok := p.(Snapshotter); ok {
		return s.Snapshot(ctx)
	}
	return "", &Error{Op: "snapshot", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Fork makes n sandboxes with the settings of p and its files as they are now,
// all with the same Paths where the backend can and else with paths of their
// own below which everything is the same. Processes are not copied, and durable
// commands not either: those of p go on in p, and the copies know none. The copies
// share nothing with p that any of them changes; they belong to the caller, who
// terminates and closes them; they outlive p.
//
// Fork makes all of the copies or none, and none when ctx is done first. n below 1
// is fs.ErrInvalid. A sandbox that cannot be copied is errors.ErrUnsupported, see
// Capabilities.Fork.
func Fork(ctx context.Context, p EnvironmentPrimitive, n int) ([]EnvironmentPrimitive, error) {
	if f, ok := p.(Forker); ok {
		return f.Fork(ctx, n)
	}
	return nil, &Error{Op: "fork", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Pause freezes every process of a sandbox until [Resume]: they take no more
// processor time and keep their memory. Poll reports [StatusPaused]. Snapshot, Fork,
// ReadUsage, Terminate and Close work; all other calls return [ErrUnavailable].
// Those that are under way wait, for as long as it takes, and go on after Resume.
// Other handles of the sandbox, in this or another program, may take it for
// unavailable and have to attach again; attaching resumes it. Pausing a paused
// sandbox is no error.
//
// A sandbox that cannot be frozen is errors.ErrUnsupported, see Capabilities.Pause.
func Pause(ctx context.Context, p EnvironmentPrimitive) error {
	if s, ok := p.(Pauser); ok {
		return s.Pause(ctx)
	}
	return &Error{Op: "pause", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Resume lets the processes of a paused sandbox go on where they were. Resuming a
// running sandbox is no error.
func Resume(ctx context.Context, p EnvironmentPrimitive) error {
	if s, ok := p.(Pauser); ok {
		return s.Resume(ctx)
	}
	return &Error{Op: "resume", Target: p.ID(), Err: errors.ErrUnsupported}
}
