package modal

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
)

// client is one user of a shared connection to Modal.
type client struct {
	*connection
	closeOnce sync.Once
}

// Close releases the connection.
func (c *client) Close() { c.closeOnce.Do(c.leave) }

// maxThrottle is how long the SDK retries a call that Modal throttles (rate limit). After other
// transient errors the SDK retries a call a few times. This package has no retries of its own,
// except that it repeats a call with another image when the cached one no longer exists.
const maxThrottle = 2 * time.Minute

// profileVariable is the environment variable that selects a profile of the SDK.
const profileVariable = "MODAL_PROFILE"

// connect returns a client without calling Modal.
func connect(cfg Provider) (*client, error) {
	c, err := join(cfg, func(c *connection) error { return c.open(cfg) })
	if err != nil {
		return nil, err
	}
	return &client{connection: c}, nil
}

// open creates the SDK's client. The caller must serialize calls of open: they change the
// process's environment.
func (c *connection) open(cfg Provider) error {
	wait := maxThrottle
	params := &sdk.ClientParams{
		Environment:     cfg.Environment,
		Logger:          slog.New(slog.DiscardHandler), // it would write on standard error
		MaxThrottleWait: &wait,
		// The SDK does not return all that Modal answers. A call on its connection passes
		// through the SDK's own interceptors.
		GRPCUnaryInterceptors: []grpc.UnaryClientInterceptor{func(
			ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			c.conn.Store(conn)
			return invoke(ctx, method, req, reply, conn, opts...)
		}},
	}
	if cfg.Profile != "" {
		before, set := os.LookupEnv(profileVariable)
		if err := os.Setenv(profileVariable, cfg.Profile); err != nil {
			return err
		}
		defer func() {
			if set {
				_ = os.Setenv(profileVariable, before)
			} else {
				_ = os.Unsetenv(profileVariable)
			}
		}()
	}
	var err error
	if c.Client, err = sdk.NewClientWithOptions(params); err != nil {
		return fmt.Errorf("%w: %w; correct the MODAL_ environment variables and ~/.modal.toml", fs.ErrInvalid, err)
	}
	return nil
}

// control returns the control plane's client. The SDK must have made a call before.
func (c *client) control() pb.ModalClientClient { return pb.NewModalClientClient(c.conn.Load()) }

// findApp returns the app of the configuration. If wanted, it creates a missing default app.
func (c *client) findApp(ctx context.Context, cfg Provider, wanted bool) (*sdk.App, error) {
	app, err := c.Apps.FromName(ctx, cfg.app(), &sdk.AppFromNameParams{
		Environment: cfg.Environment, CreateIfMissing: wanted && cfg.App == "",
	})
	if err != nil {
		err = explain(err)
		if isNotFound(err) {
			err = fmt.Errorf("app: %q: %w; make it with \"modal app\" first, or leave it out", cfg.app(), err)
		}
		return nil, err
	}
	return app, nil
}

const (
	sandboxPrefix = "sb-"
	imagePrefix   = "im-"
)

// isOld reports whether a sandbox has an ID of Modal's first kind, as those with a GPU have.
// These need other API methods.
func isOld(id string) bool {
	const oldLength = 22
	suffix := strings.TrimPrefix(id, sandboxPrefix)
	if len(suffix) != oldLength {
		return false
	}
	return !strings.ContainsFunc(suffix, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// result returns how a sandbox ended, or nil if it has not ended.
func (c *client) result(ctx context.Context, id string) (*pb.GenericResult, error) {
	req := pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: 0}.Build()
	wait := c.control().SandboxWaitV2
	if isOld(id) {
		wait = c.control().SandboxWait
	}
	resp, err := wait(ctx, req)
	if err != nil {
		return nil, err
	}
	if r := resp.GetResult(); r != nil && r.GetStatus() != pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
		return r, nil
	}
	return nil, nil // it runs
}
