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

// environmentName is the server's default environment.
const environmentName = "main"

// maxMessage is the SDK's own message size limit, in bytes.
const maxMessage = 100 << 20

// Options configure a server. The zero value is useful.
type Options struct {
	// Dir is the parent of the server's directory, which contains sandboxes and images and is
	// removed by Close. Empty means the system's directory for temporary files.
	Dir string
	// Programs are additional directories of this machine that sandboxes see under the same
	// path and cannot change. Sandboxes need their own root file systems for that, see the
	// package comment.
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

	creating sync.Mutex // held while a sandbox gets its name

	mu        sync.Mutex
	problems  []error
	apps      map[string]string // IDs by name
	sandboxes []*sandbox        // in the order of creation
	secrets   map[string]*secret
	volumes   map[string]*volume
	names     map[string]string // IDs of named objects, by kind and name
}

// New starts a server. The server and everything in it end with the test.
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

// Start starts a server. Its sandboxes end with ctx. The caller must call Close in any case.
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

// Close ends all sandboxes and the server, and removes all its files. Further calls return the
// first call's result.
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
		<-sb.cleanedUp
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

// report stores errors that no call can return. Close returns them.
func (s *Server) report(what string, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.problems = append(s.problems, fmt.Errorf("%s: %w", what, err))
	}
}

// URL returns the address for MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.network.Addr().String() }

// routerURL returns the router's address for clients. The SDK requires https in it, but then
// uses plain text because the control plane is on the loopback interface.
func (s *Server) routerURL() string { return "https://" + s.network.Addr().String() }

// Credentials returns the only token that the server accepts.
func (s *Server) Credentials() (id, secret string) { return s.tokens.id, s.tokens.secret }

// Definition returns the definition that a sandbox was created with, or nil if the ID is
// unknown.
func (s *Server) Definition(id string) *pb.Sandbox {
	sb, err := s.sandbox(id)
	if err != nil {
		return nil
	}
	return sb.definition
}

// NetworkAccess returns the policy that was last set for a sandbox, or nil if the ID is
// unknown. Only a policy that blocks the network from the start is enforced.
func (s *Server) NetworkAccess(id string) *pb.NetworkAccess {
	sb, err := s.sandbox(id)
	if err != nil {
		return nil
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.network
}

// Environ returns the variables, as "NAME=value", with which a client in another process finds
// the server. config is the path of an empty file.
func (s *Server) Environ(config string) []string {
	return []string{
		"MODAL_CONFIG_PATH=" + config, "MODAL_SERVER_URL=" + s.URL(), "MODAL_TOKEN_ID=" + s.tokens.id,
		"MODAL_TOKEN_SECRET=" + s.tokens.secret, "MODAL_ENVIRONMENT=" + environmentName,
	}
}

// Setenv points the SDK's clients of this test at the server, and hides the user's own
// settings.
func (s *Server) Setenv(t testing.TB) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "MODAL_") {
			t.Setenv(name, "") // registers the restore of the old value
			_ = os.Unsetenv(name)
		}
	}
	for _, entry := range s.Environ(config) {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
}

// newID returns a new ID in Modal's newer format, "sb-01" and 24 characters. The SDK chooses
// methods by the format.
func newID(prefix string) string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "-01" + base32.StdEncoding.EncodeToString(b[:])
}
