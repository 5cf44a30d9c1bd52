package remote

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

func init() { primitives.Register(backend, func() primitives.Provider { return new(Provider) }) }

// HostSettings returns the settings that only a program can give, no configuration file. Package environment fills those that are
// nil.
func (p *Provider) HostSettings() (
	runner *func(ctx context.Context, goos, goarch string) (string, error), logger *hclog.Logger, progress *func(message string),
) {
	return nil, &p.Logger, nil
}
