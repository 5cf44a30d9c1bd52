package docker

import (
	"context"
	"crypto/tls"
	"net"
)

// BypassFrom sets the size from which on files go through the engine's archives.
func BypassFrom(cfg *Config, size int64) { cfg.bypassFrom = size }

// DialTLS connects as to an engine.
func DialTLS(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	return dialTLS(dialTCP(address), config)(ctx)
}
