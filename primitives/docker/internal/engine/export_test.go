package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
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

// DialSSH connects through the ssh command.
func DialSSH(ctx context.Context, host string) (net.Conn, error) {
	dial, err := dialSSH(&url.URL{Scheme: "ssh", Host: host})
	if err != nil {
		return nil, err
	}
	return dial(ctx)
}

// WordsOfSSH returns what ssh has said of its failure; "" if err is no failure of ssh.
func WordsOfSSH(err error) string {
	if failed, ok := errors.AsType[*sshError](err); ok {
		return failed.stderr
	}
	return ""
}
