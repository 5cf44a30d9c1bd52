package testmodal

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// environmentName is the one environment that the server has.
const environmentName = "main"

// maxMessage is the SDK's own limit of a message, in bytes.
const maxMessage = 100 << 20

// Options are the choices of a server; the zero value is usable.
type Options struct {
	// Dir is where sandboxes and images are kept, in a directory of its own that is
	// removed by Close; empty is the system's directory for temporary files.
	Dir string
}

// Server speaks Modal's protocol. Its methods are safe for concurrent use.
type Server struct {
	dir      string
	listener net.Listener
	grpc     *grpc.Server
	faults   *faults
	tokens   tokens
	ctx      context.Context //nolint:containedctx // the life of the server, which its sandboxes share
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu        sync.Mutex
	apps      map[string]string // ids by name
	sandboxes map[string]*sandbox
	tasks     map[string]*sandbox
}

// New starts a server that ends with the test, and with it everything that runs in it.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := Start(context.Background(), Options{})
	if err != nil {
		t.Fatalf("start the server of the tests: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("end the server of the tests: %v", err)
		}
	})
	return s
}

// Start starts a server, which ends with ctx or Close. Close must be called in any case.
func Start(ctx context.Context, opts Options) (*Server, error) {
	dir, err := os.MkdirTemp(opts.Dir, fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{
		dir: dir, listener: l, faults: newFaults(), tokens: newTokens(),
		apps: map[string]string{}, sandboxes: map[string]*sandbox{}, tasks: map[string]*sandbox{},
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(64<<20), grpc.InitialConnWindowSize(64<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.WaitForHandlers(true),
	)
	pb.RegisterModalClientServer(s.grpc, &controlPlane{Server: s})
	pb.RegisterTaskCommandRouterServer(s.grpc, &router{Server: s})
	s.running.Go(func() { _ = s.grpc.Serve(l) })
	return s, nil
}

// Close ends every sandbox and the server, and removes all that it kept. A second
// call does nothing.
func (s *Server) Close() error {
	s.stop()
	s.grpc.Stop()
	s.mu.Lock()
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, sb := range s.sandboxes {
		all = append(all, sb)
	}
	s.mu.Unlock()
	for _, sb := range all {
		sb.end(resultTerminated())
		<-sb.gone
	}
	s.running.Wait()
	return os.RemoveAll(s.dir)
}

// URL is the address for MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// routerURL is the address that is told to clients. They demand https of it, and
// then use plain text because the control plane is on the loopback interface.
func (s *Server) routerURL() string { return "https://" + s.listener.Addr().String() }

// Credentials are the only token that the server accepts.
func (s *Server) Credentials() (id, secret string) { return s.tokens.id, s.tokens.secret }

// Setenv lets the SDK's clients that are made in this test find the server, and
// nothing of the user's.
func (s *Server) Setenv(t testing.TB) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"MODAL_PROFILE", "MODAL_OAUTH_CLIENT_ID", "MODAL_OAUTH_CLIENT_SECRET", "MODAL_OAUTH_TOKEN",
		"MODAL_IMAGE_BUILDER_VERSION", "MODAL_LOGLEVEL", "MODAL_MAX_THROTTLE_WAIT",
		"MODAL_SANDBOX_CHANNEL_IDLE_TIMEOUT", "MODAL_SANDBOX_V2", "MODAL_USE_CONTROL_PLANE_SIDECAR_CREATE",
	} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name) // Setenv has noted what it was
	}
	t.Setenv("MODAL_CONFIG_PATH", config)
	t.Setenv("MODAL_SERVER_URL", s.URL())
	t.Setenv("MODAL_TOKEN_ID", s.tokens.id)
	t.Setenv("MODAL_TOKEN_SECRET", s.tokens.secret)
	t.Setenv("MODAL_ENVIRONMENT", environmentName)
}

// newID mints an id of Modal's newer shape, "sb-01" and 24 characters, by which the
// SDK knows which methods to call.
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s-01%s", prefix, hex.EncodeToString(b[:]))
}
