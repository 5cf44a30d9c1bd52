package primitives

import (
	"context"
	"errors"
	"time"
)

// Usage is the resource usage of a sandbox at one moment. A field that the backend cannot
// measure is negative.
type Usage struct {
	CPU         time.Duration `json:"cpu_ns"`       // processor time since the sandbox was created
	Memory      int64         `json:"memory"`       // bytes, without caches that the kernel frees when needed
	MemoryLimit int64         `json:"memory_limit"` // bytes; 0 means no limit
	Processes   int           `json:"processes"`    // processes, or threads if the backend counts those; may include the backend's own
}

// UsageReader is implemented by primitives that can measure their usage. Call [ReadUsage].
type UsageReader interface {
	// ReadUsage does what the function [ReadUsage] promises.
	ReadUsage(ctx context.Context) (Usage, error)
}

// ReadUsage returns the current usage of a sandbox. A sandbox that cannot measure it returns
// errors.ErrUnsupported; see Capabilities.Usage.
func ReadUsage(ctx context.Context, p EnvironmentPrimitive) (Usage, error) {
	if r, ok := p.(UsageReader); ok {
		return r.ReadUsage(ctx)
	}
	return Usage{}, &Error{Op: "usage", Target: p.ID(), Err: errors.ErrUnsupported}
}
