package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// BypassFrom sets the size from which on files go through the engine's archives.
func BypassFrom(cfg *Config, size int64) { cfg.bypassFrom = size }

// ForgetSweep has the next New of an engine look for what programs have left that died.
func ForgetSweep(host string) { forgetSweep(host) }

// DialTLS connects as to an engine.
func DialTLS(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	return dialTLS(dialTCP(address), config)(ctx)
}

// AskPatiently asks an engine that may take that long for its first answer.
func AskPatiently(ctx context.Context, socket string, patience time.Duration) error {
	eng, err := client.NewClientWithOpts(
		client.WithHost("unix://"+socket), client.WithAPIVersionNegotiation(), client.WithDialContext(guarded(dialUnix(socket), patience)),
	)
	if err != nil {
		return err
	}
	_, err = eng.ContainerList(ctx, container.ListOptions{})
	return errors.Join(explain(eng, err), eng.Close())
}
