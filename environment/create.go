package environment

import (
	"context"
	"errors"
	"fmt"
)

// Create makes a sandbox of the configured type and prepares it. Closing the
// environment ends that sandbox, unless cfg.Keep is set.
//
// ctx covers the creation only. When Create fails nothing is left of the sandbox.
func Create(ctx context.Context, cfg Config) (*Environment, error) {
	return nil, fmt.Errorf("create: %w", errors.ErrUnsupported)
}

// Attach opens a sandbox again that was kept, by its [Environment.ID], from this
// or another program. Config.Workspace is not placed again, and [Environment.Changes]
// are counted from now. Closing the environment leaves the sandbox as it is.
func Attach(ctx context.Context, id string, cfg Config) (*Environment, error) {
	return nil, fmt.Errorf("attach: %w", errors.ErrUnsupported)
}
