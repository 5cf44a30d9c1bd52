package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestAnAddressThatIsNone(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:8377", "ftp://127.0.0.1", "http://", "http://a?b=c", "http://a b"} {
		if _, err := remote.New(remote.Config{URL: url}); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "http://127.0.0.1") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestWhatCannotTravelIsRefused(t *testing.T) {
	c := client(t, "http://127.0.0.1:1")
	env := environment.Config{Agent: environment.Agent{Name: "script"}}
	for names, cfg := range map[string]session.Config{
		"Store":        {Environment: env, Store: store.NewMemory()},
		"OnPermission": {Environment: environment.Config{OnPermission: environment.AllowAll}},
		"Logger":       {Environment: environment.Config{Logger: hclog.NewNullLogger()}},
		"reader":       {Environment: environment.Config{Workspace: []environment.Source{{Tar: &environment.Tar{Reader: strings.NewReader("")}}}}},
	} {
		_, err := c.Create(t.Context(), cfg)
		_, cerr := c.Check(t.Context(), cfg)
		for _, err := range []error{err, cerr} {
			if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), names) {
				t.Errorf("%s: %v", names, err)
			}
		}
	}
}

// Check is Create without a session.
func TestCheckCreatesNothing(t *testing.T) {
	c := client(t, serve(t, t.TempDir()))
	cfg := session.Config{Environment: environment.Config{Agent: environment.Agent{Name: "script"}, Sandbox: environment.Sandbox{Type: "local"}}}
	config, err := c.Check(t.Context(), cfg)
	if env, perr := environment.ParseConfig(config); err != nil || perr != nil || env.Agent.Name != "script" {
		t.Errorf("%s, %v, %v", config, err, perr)
	}
	cfg.Environment.Agent.Name = "claud"
	if _, err := c.Check(t.Context(), cfg); !errors.Is(err, environment.ErrConfig) {
		t.Errorf("an agent that is none: %v", err)
	}
	for r, err := range c.List(t.Context(), store.Filter{}) {
		t.Errorf("there is the session %s, %v", r.ID, err)
	}
}

// What answers need not be an agentenv server, and need not answer at all.
func TestAnswersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
		says   string
	}{
		"a page":          {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, nil, "no answer of an agentenv server"},
		"not found":       {http.NotFound, nil, "no answer of an agentenv server"},
		"a gateway's 502": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, remote.ErrUnreachable, "502"},
		"an unknown code": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, `{"error":{"code":"of_the_future","message":"new"}}`)
		}, remote.ErrInternal, "new"},
		"a broken connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, remote.ErrUnreachable, "EOF"},
	} {
		web := httptest.NewServer(c.answer)
		var log bytes.Buffer
		cl, err := remote.New(remote.Config{URL: web.URL, HTTP: web.Client(), Patience: 20 * time.Millisecond, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
		if err != nil {
			t.Fatal(err)
		}
		_, err = cl.Open(t.Context(), "x")
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.says)
		}
		if warned := strings.Contains(log.String(), "trying again"); warned != errors.Is(err, remote.ErrUnreachable) {
			t.Errorf("%s: the log has %q", name, log.String())
		}
		if s, err := cl.Create(t.Context(), session.Config{}); err == nil {
			t.Errorf("%s: it created %v", name, s)
		}
		if _, err := cl.Session("x").State(t.Context()); err == nil {
			t.Errorf("%s: it has a state", name)
		}
		web.Close()
	}
}

// An address at which no server has answered before is not tried again.
func TestAServerThatIsNotThereIsSaidAtOnce(t *testing.T) {
	c, err := remote.New(remote.Config{URL: "http://127.0.0.1:1", Patience: time.Hour}) // any other free port may belong to another test when it is dialed
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(t.Context(), "x"); !errors.Is(err, remote.ErrUnreachable) {
		t.Errorf("%v, want ErrUnreachable", err)
	}
}

func TestAWrongTokenIsSaid(t *testing.T) {
	url := serve(t, t.TempDir())
	c, err := remote.New(remote.Config{URL: url, Token: "another", HTTP: &http.Client{Transport: transport(t)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(t.Context(), "x"); !errors.Is(err, remote.ErrUnauthorized) {
		t.Errorf("open: %v", err)
	}
	for _, err := range c.List(t.Context(), store.Filter{}) {
		if !errors.Is(err, remote.ErrUnauthorized) {
			t.Errorf("list: %v", err)
		}
	}
}

// A server that starts again has its clients again.
func TestTheEventsGoOnWhenTheServerStartsAgain(t *testing.T) {
	log := hclog.NewNullLogger()
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	root := filepath.Join(t.TempDir(), "sandboxes")
	// Each start has a port of its own, which the client's connections go to: the old one cannot be listened on again
	// while a process that is being started has its socket still.
	var address atomic.Pointer[net.TCPAddr]
	start := func() (stop func()) {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address.Store(l.Addr().(*net.TCPAddr))
		return serveOn(t, l, h, root)
	}
	stop := start()
	own := transport(t)
	own.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address.Load().String())
	}
	c, err := remote.New(remote.Config{URL: "http://server", Token: token, HTTP: &http.Client{Transport: own}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Create(t.Context(), session.Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{Name: "script", Config: []byte(`{"turns":[{"steps":[{"text":"x"}]}]}`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prompt(t.Context(), "go"); err != nil {
		t.Fatal(err)
	}
	var last uint64
	restarted := false
	for ev, err := range s.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if last++; ev.Seq != last {
			t.Fatalf("event %d comes in place of %d", ev.Seq, last)
		}
		if restarted {
			break
		}
		stop()
		stop = start()
		restarted = true
		if _, err := s.Prompt(t.Context(), "go on"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
}

func TestFilesAreWritten(t *testing.T) {
	roots.Store(t.Name(), filepath.Join(t.TempDir(), "sandboxes"))
	c := client(t, serve(t, rootOf(t)))
	s, err := c.Create(t.Context(), session.Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{Name: "script", Config: []byte(`{"turns":[{"steps":[{"text":"x"}]}]}`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(t.Context(), "f", strings.NewReader("1"), primitives.WriteOptions{}); !errors.Is(err, session.ErrNoEnvironment) {
		t.Errorf("without a sandbox: %v", err)
	}
	turn, err := s.Prompt(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := turn.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB
	err = s.WriteFile(t.Context(), "a file", strings.NewReader(large), primitives.WriteOptions{Mode: 0o600})
	err = errors.Join(err, s.WriteFile(t.Context(), "a file", strings.NewReader("end"), primitives.WriteOptions{Append: true}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(t.Context(), "a file", strings.NewReader(""), primitives.WriteOptions{Exclusive: true}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("exclusively: %v", err)
	}
	if err := s.WriteFile(t.Context(), "../out", strings.NewReader(""), primitives.WriteOptions{}); !errors.Is(err, primitives.ErrPathEscape) {
		t.Errorf("outside: %v", err)
	}
	r, err := s.OpenFile(t.Context(), "a file")
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil || string(content) != large+"end" {
		t.Errorf("it has %d bytes, %v", len(content), err)
	}
	files, err := s.Files(t.Context(), environment.FilesOptions{})
	if err != nil || len(files) != 1 || files[0].Mode != 0o600 || files[0].ModTime.Before(time.Unix(1, 0)) {
		t.Errorf("files: %+v, %v", files, err)
	}
}
