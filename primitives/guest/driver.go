package guest

import (
	"context"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Driver is what a backend knows of one sandbox that its guest cannot: how to connect to
// it, whether it lives, and how to end it. [Open] makes a [Sandbox] of it. Methods may be
// called from several goroutines at once.
//
// A driver may implement [Ender], [Refiner], [Copier], [primitives.Snapshotter],
// [primitives.Pauser], [primitives.UsageReader] and [primitives.PortLister], too. The
// Sandbox calls these only while the sandbox is neither closed nor terminated, and says
// where their errors come from.
type Driver interface {
	// ID returns the sandbox's ID.
	ID() string
	// Dial starts the guest, or a further one beside it, and returns its byte stream.
	// Closing the stream must unblock its readers and writers. If the stream has a
	// method Stderr() string, a failed handshake quotes what that returns.
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
	// State asks the backend for the state of the sandbox.
	State(ctx context.Context) (Status, error)
	// End ends the sandbox and returns when it is gone, also when ctx is done. A sandbox
	// that has ended is no error. The guest's processes have ended, if they could be.
	End(ctx context.Context) error
	// Close releases what the driver holds. The sandbox lives on.
	Close() error
}

// Status is the state of a sandbox as its backend sees it.
type Status struct {
	primitives.State
	// Cause says why a sandbox that does not run has ended: an error that is
	// primitives.ErrUnavailable, and os.ErrProcessDone if nothing runs in it any more.
	// Nil says no more than the state.
	Cause error
}

// Ender is implemented by drivers that do a part of [Driver].End while the guest ends
// the processes.
type Ender interface {
	// BeginEnd starts that part, also when ctx is done. The function that it returns is
	// called once, before End. It may call hangUp, which reports whether the guest has
	// nothing left to do, and so ends by itself now.
	BeginEnd(ctx context.Context) (finish func(hangUp func() bool))
}

// Refiner is implemented by drivers that know more of what the sandbox can do than
// which methods they have.
type Refiner interface {
	// Refine returns the capabilities as they are.
	Refine(c primitives.Capabilities) primitives.Capabilities
}

// Copier is implemented by drivers whose sandboxes can be copied: the Sandbox implements
// primitives.Forker with it.
type Copier interface {
	// Freeze keeps the files of the sandbox as they are now, for copies.
	Freeze(ctx context.Context) (Frozen, error)
}

// Frozen are the files of a sandbox, to be copied.
type Frozen interface {
	// Copy makes one sandbox. It may be called several times at once.
	Copy(ctx context.Context) (*Sandbox, error)
	// Drop removes the files when there is no copy, also when ctx is done.
	Drop(ctx context.Context) error
}

// RunnerHolder is implemented by drivers that have put a runner into the sandbox.
type RunnerHolder interface {
	// Runner returns where in the sandbox the runner lies that this file of the host is;
	// empty if it is another one.
	Runner(file string) string
}
