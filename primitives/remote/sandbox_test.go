package remote_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/remote"
)

// patience is how long something may take that must happen.
const patience = time.Minute

// at returns the provider for a server whose type is local: others would reach the engine of this machine.
func at(url string) remote.Provider {
	return remote.Provider{Server: url, Token: token, Sandbox: "local"}
}

func create(t *testing.T, p remote.Provider, spec primitives.Spec) primitives.EnvironmentPrimitive {
	t.Helper()
	s, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// listed reports whether the server lists a sandbox.
func listed(t *testing.T, p remote.Provider, id string) bool {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == id })
}

// awaitEnd waits until the server does not list a sandbox any more.
func awaitEnd(t *testing.T, p remote.Provider, id string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); listed(t, p, id); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s is still there", id)
		}
	}
}

// cuttable returns an address through which the server can be reached, and what breaks all its connections.
func cuttable(t *testing.T, url string) (through string, cut func()) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var work sync.WaitGroup
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
		open = nil
	}
	work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), "tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			mu.Lock()
			open = append(open, near, far)
			mu.Unlock()
			work.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
			work.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); cut(); work.Wait() })
	return "http://" + l.Addr().String(), cut
}

func TestADurableCommandOutlivesItsConnection(t *testing.T) {
	url, _ := serve(t, onThisMachine(t))
	through, cut := cuttable(t, url)
	direct := at(url)
	s := create(t, at(through), primitives.Spec{})
	script := "echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 7"
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", script}, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	cut()
	if _, err := plain.Wait(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("a command over a cut connection: %v", err)
	}
	if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "attach to the sandbox again") {
		t.Errorf("a handle whose connection was cut: %v", err)
	}
	again, err := direct.Attach(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, err := again.Terminate(t.Context())
		if err := errors.Join(err, again.Close()); err != nil {
			t.Error(err)
		}
		_, _ = p.Close(), plain.Close() // their connection was cut
	}()
	if err := again.WriteFile(t.Context(), "go", strings.NewReader(""), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	same, err := primitives.Reattach(t.Context(), again, p.ID(), primitives.Offset{})
	if err != nil {
		t.Fatal(err)
	}
	out, rerr := io.ReadAll(same.Stdout())
	status, werr := same.Wait(t.Context())
	if err := errors.Join(rerr, werr, same.Close()); err != nil || string(out) != "one\ntwo\n" || status.Code != 7 {
		t.Errorf("after the cut: %q, %+v, %v", out, status, err)
	}
}

func TestASandboxEndsWithItsServerUnlessItIsKept(t *testing.T) {
	there := onThisMachine(t)
	url, stop := serve(t, there)
	p := at(url)
	kept, other := create(t, p, primitives.Spec{Keep: true}), create(t, p, primitives.Spec{})
	idle := create(t, p, primitives.Spec{})
	if err := errors.Join(kept.WriteFile(t.Context(), "work", strings.NewReader("of hours"), primitives.WriteOptions{}), idle.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := kept.Stat(t.Context(), "work"); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("without the server: %v", err)
	}
	url, _ = serve(t, there)
	p.Server = url
	for _, s := range []primitives.EnvironmentPrimitive{other, idle} {
		if _, err := p.Attach(t.Context(), s.ID()); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, primitives.ErrTerminated) {
			t.Errorf("one that is not kept, after the server: %v", err)
		}
	}
	again, err := p.Attach(t.Context(), kept.ID())
	if err != nil {
		t.Fatal(err)
	}
	text, err := primitives.ReadFile(t.Context(), again, "work", 100)
	_, terr := again.Terminate(t.Context())
	if err := errors.Join(err, terr, again.Close()); err != nil || string(text) != "of hours" {
		t.Errorf("a kept one, after the server: %q, %v", text, err)
	}
}

func TestASandboxEndsAfterItsGraceWithoutAClient(t *testing.T) {
	url, _ := serve(t, onThisMachine(t))
	p := at(url)
	s, kept := create(t, p, primitives.Spec{Grace: time.Millisecond}), create(t, p, primitives.Spec{Grace: time.Millisecond, Keep: true})
	if err := errors.Join(s.Close(), kept.Close()); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, p, s.ID())
	if !listed(t, p, kept.ID()) {
		t.Error("a kept sandbox has ended, too")
	}
	if err := p.Remove(t.Context(), kept.ID()); err != nil {
		t.Error(err)
	}
	if listed(t, p, kept.ID()) {
		t.Error("it is there after Remove")
	}
}

// A redirect would take the token to another server, and a server would give its own one away.
func TestTheTokenGoesToNoOtherServer(t *testing.T) {
	got := make(chan string, 10)
	evil := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") }))
	defer evil.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler(evil.URL, http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	if _, err := at(elsewhere.URL).Create(t.Context(), primitives.Spec{}); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("a redirect: %v", err)
	}
	url, _ := serve(t, onThisMachine(t))
	p := at(url)
	p.Sandbox = "remote"
	if _, err := p.Create(t.Context(), primitives.Spec{}); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "use that one") {
		t.Errorf("a server of a server: %v", err)
	}
	select {
	case token := <-got:
		t.Errorf("the other one got %q", token)
	default:
	}
}

// The state of a sandbox is asked for without opening it: that would resume a paused one, and keep each from its end.
func TestToLookIsNotToUse(t *testing.T) {
	url, _ := serve(t, onThisMachine(t))
	p := at(url)
	s := create(t, p, primitives.Spec{Grace: time.Millisecond})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(patience)
	for {
		state, err := s.(*guest.Sandbox).Driver().State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if state.Status == primitives.StatusTerminated {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is %s and does not end", state.Status)
		}
	}
}

// What the client leaves out is as on the server, and the type is there.
func TestTheServerHasDefaults(t *testing.T) {
	there := onThisMachine(t)
	there.Sandbox.Env = map[string]string{"FROM": "server", "BOTH": "server"}
	url, _ := serve(t, there)
	s := create(t, at(url+"/"), primitives.Spec{Env: map[string]string{"BOTH": "client"}})
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", "echo $FROM $BOTH"}}, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "server client\n" {
		t.Errorf("got %q, %v", res.Stdout, err)
	}
	if got := s.Capabilities(); got.Isolation != primitives.IsolationNone || !got.Usage || got.Pause || got.Fork {
		t.Errorf("it can: %+v", got)
	}
	if u, err := primitives.ReadUsage(t.Context(), s); err != nil || u.Processes < 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir()) // no token of a real server
	url, stop := serve(t, onThisMachine(t))
	ctx := t.Context()
	for name, c := range map[string]struct {
		p    remote.Provider
		spec primitives.Spec
		want error
		said string
	}{
		"another token":       {remote.Provider{Server: url, Token: "another-token-of-16"}, primitives.Spec{}, remote.ErrUnauthorized, "set AGENTENV_TOKEN"},
		"no token":            {remote.Provider{Server: url}, primitives.Spec{}, remote.ErrUnauthorized, "set AGENTENV_TOKEN"},
		"no address":          {remote.Provider{Server: "build1"}, primitives.Spec{}, fs.ErrInvalid, "give one such as"},
		"no scheme":           {remote.Provider{Server: "127.0.0.1:8377"}, primitives.Spec{}, fs.ErrInvalid, `"127.0.0.1:8377" is no address`},
		"a bad password":      {remote.Provider{Server: "http://me:%secret@build1"}, primitives.Spec{}, fs.ErrInvalid, "give one such as"},
		"a password":          {remote.Provider{Server: "http://me:secret@build1"}, primitives.Spec{}, fs.ErrInvalid, "xxxxx"},
		"nobody there":        {remote.Provider{Server: "http://127.0.0.1:1", Token: token}, primitives.Spec{}, primitives.ErrUnavailable, "cannot be reached"},
		"no type":             {remote.Provider{Server: url, Token: token, Sandbox: "dockre"}, primitives.Spec{}, fs.ErrInvalid, "dockre"},
		"no setting of it":    {remote.Provider{Server: url, Token: token}, primitives.Spec{Memory: 1}, errors.ErrUnsupported, "memory"},
		"a setting by itself": {remote.Provider{Server: url, Token: token}, primitives.Spec{Grace: -1}, fs.ErrInvalid, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := c.p.Create(ctx, c.spec)
			if err == nil {
				t.Fatal("no error; ", s.Close())
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.said) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v\nwant %v, with %q", err, c.want, c.said)
			}
		})
	}
	p := at(url)
	_, err := p.Create(ctx, primitives.Spec{Memory: 1})
	if wrong, ok := errors.AsType[*primitives.SettingError](err); !ok || wrong.Setting != "memory" {
		t.Errorf("the setting is lost on the way: %v", err)
	}
	if found := (remote.Provider{}).Examine(ctx, primitives.Spec{}); found != nil {
		t.Errorf("without a server: %+v", found)
	}
	stop()
	if found := p.Examine(ctx, primitives.Spec{}); len(found) != 1 || !errors.Is(found[0].Err, primitives.ErrUnavailable) {
		t.Errorf("examined: %+v", found)
	}
}

// imaged is a type whose Create passes on its Spec, and makes no sandbox.
type imaged struct{}

var asked = make(chan primitives.Spec, 10)

func (imaged) Create(_ context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	asked <- spec
	return nil, fs.ErrExist
}

func (imaged) Attach(context.Context, string) (primitives.EnvironmentPrimitive, error) {
	return nil, fs.ErrNotExist
}
func (imaged) List(context.Context) ([]primitives.Info, error) { return nil, nil }
func (imaged) Remove(context.Context, string) error            { return fs.ErrNotExist }

func (imaged) BuildImage(context.Context, primitives.Spec) (primitives.Image, error) {
	return primitives.Image{}, fs.ErrExist
}
func (imaged) Images(context.Context) ([]primitives.Image, error) { return nil, nil }
func (imaged) RemoveImage(context.Context, string) error          { return fs.ErrNotExist }

var registerImaged = sync.OnceFunc(func() { primitives.Register("imaged", func() primitives.Provider { return new(imaged) }) })

// The client cannot know whether the type has images, nor which one is the default there.
func TestTheServerChoosesTheImageAndAddsTheAgent(t *testing.T) {
	registerImaged()
	url, _ := serve(t, onThisMachine(t))
	for _, image := range []string{"", "golang"} {
		cfg := environment.Config{Agent: environment.Agent{Name: "claude"}, Sandbox: environment.Sandbox{
			Type: "remote", Provider: &remote.Provider{Server: url, Token: token, Sandbox: "imaged"}, Spec: primitives.Spec{Image: image},
		}}
		if _, err := environment.Create(t.Context(), cfg); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Create: %v", err)
		}
		spec := <-asked
		if want := image; want == "" && spec.Image != environment.DefaultImage || want != "" && spec.Image != want {
			t.Errorf("the image is %q", spec.Image)
		}
		if spec.Install.Program != "claude" || len(spec.Install.Commands) == 0 {
			t.Errorf("it installs %+v", spec.Install)
		}
	}
}
