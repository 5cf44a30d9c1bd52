package primitives

import (
	"context"
	"errors"
)

// Snapshotter is implemented by primitives that can snapshot their files. Call [Snapshot].
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

// Snapshot saves the files of a sandbox as they are now, with permissions, links and times (to
// the second at least), and returns the ID of the snapshot. The backend creates new sandboxes
// from this ID: see the backend's Config. Processes are not part of it and keep running; they
// may have to wait while the files are read, so that the files are consistent. Files that are
// not the sandbox's own, such as mounted folders, are left out. A snapshot stays until it is
// removed, also after the sandbox has ended. If ctx is done before the snapshot is complete,
// nothing of it remains.
//
// A sandbox that does not support snapshots returns errors.ErrUnsupported; see
// Capabilities.Snapshot.
func Snapshot(ctx context.Context, p EnvironmentPrimitive) (id string, err error) {
	if s, ok := p.(Snapshotter); ok {
		return s.Snapshot(ctx)
	}
	return "", &Error{Op: "snapshot", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Fork creates n sandboxes with the settings and the current files of p. The copies have the
// same Paths if the backend can do that, otherwise Paths of their own with the same layout
// below them. Processes are not copied, nor are durable commands: those of p keep running in p,
// and the copies do not know them. The copies share nothing with p that any of them changes.
// They belong to the caller, who must terminate and close them, and they outlive p.
//
// Fork creates all copies or none, and none if ctx is done first. n below 1 returns
// fs.ErrInvalid. A sandbox that does not support forks returns errors.ErrUnsupported; see
// Capabilities.Fork.
func Fork(ctx context.Context, p EnvironmentPrimitive, n int) ([]EnvironmentPrimitive, error) {
	if f, ok := p.(Forker); ok {
		return f.Fork(ctx, n)
	}
	return nil, &Error{Op: "fork", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Pause freezes every process of a sandbox until [Resume]: the processes use no more processor
// time and keep their memory. Poll reports [StatusPaused]. Snapshot, Fork, ReadUsage, Terminate
// and Close work; all other calls return [ErrUnavailable]. Calls in progress block until
// Resume, without a time limit, and then continue. Other handles of the sandbox, in this or
// another program, may report it as unavailable and must attach again; attaching resumes the
// sandbox. Pausing a paused sandbox is not an error.
//
// A sandbox that does not support pausing returns errors.ErrUnsupported; see
// Capabilities.Pause.
func Pause(ctx context.Context, p EnvironmentPrimitive) error {
	if s, ok := p.(Pauser); ok {
		return s.Pause(ctx)
	}
	return &Error{Op: "pause", Target: p.ID(), Err: errors.ErrUnsupported}
}

// Resume continues the processes of a paused sandbox. Resuming a running sandbox is not an
// error.
func Resume(ctx context.Context, p EnvironmentPrimitive) error {
	if s, ok := p.(Pauser); ok {
		return s.Resume(ctx)
	}
	return &Error{Op: "resume", Target: p.ID(), Err: errors.ErrUnsupported}
}
