package remote_test

import (
	"context"
	"iter"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/sessiontest"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

const token = "a token of the tests"

func TestASessionOfAServerKeepsTheContract(t *testing.T) {
	sessiontest.Run(t, overServer(nil))
}

// roots has the folders of the sandboxes, by the name of the test.
var roots sync.Map

func rootOf(t *testing.T) string {
	root, _ := roots.Load(t.Name())
	return root.(string)
}

// overServer returns a harness with a server of its own for each test. through returns the address at which the client finds a
// server, if it is not the server's own.
func overServer(through func(t *testing.T, url string) string) sessiontest.Harness {
	return sessiontest.Harness{
		Environment: func(t *testing.T) environment.Config {
			roots.Store(t.Name(), filepath.Join(t.TempDir(), "sandboxes"))
			return environment.Config{Sandbox: environment.Sandbox{Type: "local"}}
		},
		Open: func(t *testing.T) sessiontest.Host {
			url := serve(t, rootOf(t))
			if through != nil {
				url = through(t, url)
			}
			return remoteHost{client(t, url)}
		},
	}
}

// serve runs a server whose sandboxes are below root, until the end of the test, and returns its address.
func serve(t *testing.T, root string) string {
	t.Helper()
	log := hclog.NewNullLogger()
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(serveOn(t, l, h, root))
	return "http://" + l.Addr().String()
}

// serveOn runs a server until stop is called.
func serveOn(t *testing.T, l net.Listener, h *session.Host, root string) (stop func()) {
	t.Helper()
	srv, err := server.New(server.Config{
		Host: h, Token: token,
		Configure: func(_ context.Context, cfg *session.Config) error {
			cfg.Environment.Sandbox.Provider = &local.Provider{Root: root}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// transport returns connections of a test's own.
func transport(t *testing.T) *http.Transport {
	t.Helper()
	own := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(own.CloseIdleConnections)
	return own
}

// client returns a client with connections of its own.
func client(t *testing.T, url string) *remote.Client {
	t.Helper()
	c, err := remote.New(remote.Config{URL: url, Token: token, HTTP: &http.Client{Transport: transport(t)}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remoteHost, remoteSession and their methods give remote's types the interfaces of sessiontest.
type remoteHost struct{ *remote.Client }

func (h remoteHost) Create(ctx context.Context, cfg session.Config) (sessiontest.Session, error) {
	cfg.Environment.OnPermission = nil // it is environment.AnswerLater, as on the server
	return wrap(h.Client.Create(ctx, cfg))
}

func (h remoteHost) Open(ctx context.Context, id string) (sessiontest.Session, error) {
	return wrap(h.Client.Open(ctx, id))
}

func (h remoteHost) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return h.Client.List(ctx, f)
}

func wrap(s *remote.Session, err error) (sessiontest.Session, error) {
	if err != nil {
		return nil, err
	}
	return remoteSession{s}, nil
}

type remoteSession struct{ *remote.Session }

func (s remoteSession) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (sessiontest.Turn, error) {
	turn, err := s.Session.Prompt(ctx, text, attachments...)
	if err != nil {
		return nil, err
	}
	return turn, nil
}

func (s remoteSession) PromptQuery(ctx context.Context, q environment.Query) (sessiontest.Turn, error) {
	turn, err := s.Session.PromptQuery(ctx, q)
	if err != nil {
		return nil, err
	}
	return turn, nil
}

func (s remoteSession) PromptOnce(ctx context.Context, q environment.Query) (sessiontest.Turn, error) {
	turn, err := s.Session.PromptOnce(ctx, q)
	if err != nil {
		return nil, err
	}
	return turn, nil
}

func (s remoteSession) Fork(ctx context.Context, n int) ([]sessiontest.Session, error) {
	return wrapAll(s.Session.Fork(ctx, n))
}

func (s remoteSession) ForkFrom(ctx context.Context, number, n int) ([]sessiontest.Session, error) {
	return wrapAll(s.Session.ForkFrom(ctx, number, n))
}

func wrapAll(forks []*remote.Session, err error) ([]sessiontest.Session, error) {
	var all []sessiontest.Session
	for _, f := range forks {
		all = append(all, remoteSession{f})
	}
	return all, err
}
