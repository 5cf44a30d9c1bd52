package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// DialTLS connects as the client connects to an engine.
func DialTLS(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	return dialTLS(dialTCP(address), config)(ctx)
}

// AskPatiently sends a request to an engine that may take timeout for its first answer.
func AskPatiently(ctx context.Context, host string, timeout time.Duration) error {
	at, err := resolve(host, nil)
	if err != nil {
		return err
	}
	eng, err := client.NewClientWithOpts(client.WithHost(at.address), client.WithAPIVersionNegotiation(), client.WithDialContext(guarded(at.dial, timeout)))
	if err != nil {
		return err
	}
	_, err = eng.ContainerList(ctx, container.ListOptions{})
	return errors.Join(Explain(eng, err), eng.Close())
}
