package testmodal

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// Programs are more directories of this machine that sandboxes see, by the same
	// path, and cannot change. They need roots of their own, see the package comment.
	Programs []string
}

// Server speaks Modal's protocol. Its methods are safe for concurrent use.
type Server struct {
	dir, base string
	programs  []string
	network   *network
	grpc      *grpc.Server
	faults    *faults
	tokens    tokens
	images    *images
	ctx       context.Context //nolint:containedctx // the life of the server, which its sandboxes share
	stop      context.CancelFunc
	running   sync.WaitGroup
	closing   sync.Once
	closed    error

	creating sync.Mutex // by who takes a name

	mu        sync.Mutex
	problems  []error
	apps      map[string]string // ids by name
	sandboxes []*sandbox        // in the order they were made
	secrets   map[string]*secret
	volumes   map[string]*volume
	names     map[string]string // ids of what has a name, by kind and name
}

// New starts a server that ends with the test, and with it everything that runs in it.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := Start(context.WithoutCancel(t.Context()), Options{})
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

// Start starts a server. What runs in it ends with ctx; Close must be called in any case.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Dir == "" {
		opts.Dir = os.TempDir()
	}
	removeStale(opts.Dir)
	dir, err := newDir(opts.Dir)
	if err != nil {
		return nil, err
	}
	base, err := newDir(baseParent(opts.Dir))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s, err := open(ctx, dir, base)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir), os.RemoveAll(base))
	}
	s.programs = opts.Programs
	return s, nil
}

func open(ctx context.Context, dir, base string) (*Server, error) {
	s := &Server{
		dir: dir, base: base, faults: newFaults(), tokens: newTokens(), images: newImages(filepath.Join(dir, "images")),
		apps: map[string]string{}, secrets: map[string]*secret{}, volumes: map[string]*volume{}, names: map[string]string{},
	}
	s.AddEnvironment(environmentName)
	if err := os.Mkdir(s.images.dir, 0o755); err != nil {
		return nil, err
	}
	if err := makeBase(s.base); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.network = newNetwork(l)
	s.ctx, s.stop = context.WithCancel(ctx)
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(64<<20), grpc.InitialConnWindowSize(64<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.WaitForHandlers(true),
	)
	pb.RegisterModalClientServer(s.grpc, &controlPlane{Server: s})
	pb.RegisterTaskCommandRouterServer(s.grpc, &router{Server: s})
	s.running.Go(func() { _ = s.grpc.Serve(s.network) })
	return s, nil
}

// Close ends every sandbox and the server, and removes all that it kept. A second
// call returns what the first one did.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Server) close() error {
	s.stop()
	s.grpc.Stop()
	s.mu.Lock()
	all := slices.Clone(s.sandboxes)
	s.mu.Unlock()
	for _, sb := range all {
		sb.end(result(pb.GenericResult_GENERIC_STATUS_TERMINATED))
	}
	for _, sb := range all {
		<-sb.gone
		for _, e := range sb.all() {
			e.free()
		}
	}
	s.running.Wait()
	s.images.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(append(s.problems, os.RemoveAll(s.dir), os.RemoveAll(s.base))...)
}

// report keeps errors that no call could return, for Close.
func (s *Server) report(what string, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.problems = append(s.problems, fmt.Errorf("%s: %w", what, err))
	}
}

// URL is the address for MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.network.Addr().String() }

// routerURL is the address for clients. They demand https of it, and
// then use plain text because the control plane is on the loopback interface.
func (s *Server) routerURL() string { return "https://" + s.network.Addr().String() }

// Credentials are the only token that the server accepts.
func (s *Server) Credentials() (id, secret string) { return s.tokens.id, s.tokens.secret }

// Definition is what a sandbox was made from; nil if there is none with this id.
func (s *Server) Definition(id string) *pb.Sandbox {
	sb, err := s.sandbox(id)
	if err != nil {
		return nil
	}
	return sb.definition
}

// NetworkAccess is the policy that was last set for a sandbox; nil if there is none
// with this id. Only the one that blocks the network from the start is enforced.
func (s *Server) NetworkAccess(id string) *pb.NetworkAccess {
	sb, err := s.sandbox(id)
	if err != nil {
		return nil
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.network
}

// Environ are the variables, as "NAME=value", that lead a client of a process of its
// own to the server. config is the path of an empty file.
func (s *Server) Environ(config string) []string {
	return []string{
		"MODAL_CONFIG_PATH=" + config, "MODAL_SERVER_URL=" + s.URL(), "MODAL_TOKEN_ID=" + s.tokens.id,
		"MODAL_TOKEN_SECRET=" + s.tokens.secret, "MODAL_ENVIRONMENT=" + environmentName,
	}
}

// Setenv lets the SDK's clients that are made in this test find the server, and
// nothing of the user's.
func (s *Server) Setenv(t testing.TB) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "MODAL_") {
			t.Setenv(name, "") // which notes what it was
			_ = os.Unsetenv(name)
		}
	}
	for _, entry := range s.Environ(config) {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
}

// newID mints an id of Modal's newer shape, "sb-01" and 24 characters, by which the
// SDK knows which methods to call.
func newID(prefix string) string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "-01" + base32.StdEncoding.EncodeToString(b[:])
}
