package primitives

import (
	"context"
	"errors"
	"time"
)

// Usage is what a sandbox uses of its machine at one moment. A field that the
// backend cannot tell is negative.
type Usage struct {
	CPU         time.Duration `json:"cpu_ns"`       // processor time since the sandbox was made
	Memory      int64         `json:"memory"`       // bytes, without caches that the kernel gives up at need
	MemoryLimit int64         `json:"memory_limit"` // bytes; 0 is no limit
	Processes   int           `json:"processes"`    // processes, or threads where the backend counts those; its own may be among them
}

// UsageReader is implemented by primitives that know what they use. Call
// [ReadUsage].
type UsageReader interface {
	// ReadUsage does what the function [ReadUsage] promises.
	ReadUsage(ctx context.Context) (Usage, error)
}

// ReadUsage returns what a sandbox uses now. A sandbox that cannot tell returns
// errors.ErrUnsupported, see Capabilities.Usage.
func ReadUsage(ctx context.Context, p EnvironmentPrimitive) (Usage, error) {
	if r, ok := p.(UsageReader); ok {
		return r.ReadUsage(ctx)
	}
	return Usage{}, &Error{Op: "usage", Target: p.ID(), Err: errors.ErrUnsupported}
}
