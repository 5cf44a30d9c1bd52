package docker_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// aSecret is what a listening sandbox tells everyone who connects to its port.
const (
	aSecret    = "a secret"
	secretPort = 8000
)

// listening makes a sandbox on a network that sends its secret to every client of a published port.
// It returns the sandbox's address on the network, too.
func listening(t *testing.T, networkName string) (s *guest.Sandbox, address string) {
	t.Helper()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Network, cfg.Publish = networkName, []docker.Port{{Container: secretPort}}
	s = open(t, cfg)
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "while true; do echo " + aSecret + " | nc -l -p 8000; done"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	found, err := testdocker.Engine(t).ContainerInspect(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range found.NetworkSettings.Networks {
		address = n.IPAddress
	}
	return s, address
}

// told returns what the engine's machine reads from the published port.
func told(t *testing.T, s *guest.Sandbox) string {
	t.Helper()
	ports, err := s.Ports(t.Context())
	if err != nil || len(ports) != 1 {
		t.Fatalf("ports %v, %v", ports, err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ports[0].Address)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	said, _ := io.ReadAll(conn) // empty before nc listens
	return strings.TrimSpace(string(said))
}

// asks connects from a sandbox to the port of another one and returns what it reads.
func asks(t *testing.T, s *guest.Sandbox, address string) string {
	t.Helper()
	return strings.TrimSpace(string(script(t, s, "nc -w 3 "+address+" 8000 </dev/null").Stdout))
}

func TestSandboxesReachEachOtherOnlyOnANetworkThatIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ network, want string }{
		"by default": {"", ""},
		"on bridge":  {"bridge", aSecret},
	} {
		t.Run(name, func(t *testing.T) {
			a, address := listening(t, c.network)
			await(t, func() bool { return told(t, a) == aSecret })
			cfg := config(t, testdocker.Busybox(t))
			cfg.Network = c.network
			b := open(t, cfg)
			copies, err := b.Fork(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			fork, _ := copies[0].(*guest.Sandbox)
			t.Cleanup(func() {
				_, err := fork.Terminate(context.WithoutCancel(t.Context()))
				if err := errors.Join(err, fork.Close()); err != nil {
					t.Error(err)
				}
			})
			for asking, other := range map[string]*guest.Sandbox{"another sandbox": b, "a fork": fork} {
				if c.want == "" {
					if got := asks(t, other, address); got != "" {
						t.Errorf("%s reads %q from the port, want nothing", asking, got)
					}
					continue
				}
				// Between two connections nc does not listen.
				await(t, func() bool { return asks(t, other, address) == c.want })
			}
			await(t, func() bool { return told(t, a) == aSecret })
		})
	}
}

// ownNetworks returns an engine of the test's own that can make networks.
func ownNetworks(t *testing.T) (docker.Config, *client.Client) {
	t.Helper()
	d := testdocker.NewDaemon(t, nil, "--iptables=true", "--ip-forward=true")
	cfg := config(t, testdocker.Busybox(t))
	d.Load(t, cfg.Image)
	cfg.Host, cfg.Network = d.Host(), ""
	return cfg, d.Engine(t)
}

func customNetworks(t *testing.T, eng *client.Client) []network.Summary {
	t.Helper()
	found, err := eng.NetworkList(t.Context(), network.ListOptions{Filters: filters.NewArgs(filters.Arg("type", "custom"))})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestProgramsThatMakeTheNetworkAtOnceShareIt(t *testing.T) {
	t.Parallel()
	cfg, eng := ownNetworks(t)
	var making sync.WaitGroup
	for range 4 {
		making.Go(func() {
			s, err := docker.New(t.Context(), cfg)
			if err != nil {
				t.Errorf("New: %v", err)
				return
			}
			_, err = s.Terminate(t.Context())
			if err := errors.Join(err, s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	if made := customNetworks(t, eng); len(made) != 1 {
		t.Errorf("%d networks, want 1", len(made))
	}
	// Another program may be about to use it.
	if found, err := cfg.GC(t.Context(), primitives.GCOptions{}); err != nil || len(found) > 0 {
		t.Errorf("GC: %v, %v, want nothing: the network is new", found, err)
	}
	if found, err := cfg.GC(t.Context(), primitives.GCOptions{NoGrace: true}); err != nil || len(found) != 1 || found[0].Kind != "network" {
		t.Errorf("GC without grace: %v, %v, want the network", found, err)
	}
	if left := customNetworks(t, eng); len(left) > 0 {
		t.Errorf("%d networks are left", len(left))
	}
}

func TestANetworkThatIsRemovedBeforeTheStartIsMadeAgain(t *testing.T) {
	t.Parallel()
	cfg, eng := ownNetworks(t)
	var once sync.Once
	e := &retouched{host: cfg.Host, answer: func(method, path string, status int, _ map[string]any) {
		if method != http.MethodPost || !strings.HasSuffix(path, "/containers/create") || status != http.StatusCreated {
			return
		}
		once.Do(func() {
			for _, n := range customNetworks(t, eng) {
				if err := eng.NetworkRemove(t.Context(), n.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}}
	cfg.Host = e.serve(t)
	s := open(t, cfg)
	if got := output(t, s, "echo", "hi"); got != "hi\n" {
		t.Errorf("got %q", got)
	}
	if made := customNetworks(t, eng); len(made) != 1 {
		t.Errorf("%d networks, want 1", len(made))
	}
}

func TestGCLeavesANetworkThatASandboxUses(t *testing.T) {
	t.Parallel()
	cfg, eng := ownNetworks(t)
	s := open(t, cfg)
	for _, opts := range []primitives.GCOptions{{NoGrace: true, DryRun: true}, {NoGrace: true}} {
		if found, err := cfg.GC(t.Context(), opts); err != nil || len(found) > 0 {
			t.Errorf("GC %+v: %v, %v", opts, found, err)
		}
	}
	found, err := eng.ContainerInspect(t.Context(), s.ID())
	if err != nil || len(found.NetworkSettings.Networks) != 1 {
		t.Errorf("networks %v, %v", found.NetworkSettings, err)
	}
}

func TestAForeignNetworkWithTheNameOfTheSandboxesIsNotUsed(t *testing.T) {
	t.Parallel()
	cfg, eng := ownNetworks(t)
	made, err := eng.NetworkCreate(t.Context(), "agentenv", network.CreateOptions{Driver: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		_, terr := s.Terminate(t.Context())
		t.Fatal("no error", errors.Join(terr, s.Close()))
	}
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "network: ") {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	if err := eng.NetworkRemove(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
}

func TestWhatKeepsFromTheEngineIsNotBlamedOnTheNetwork(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(cancel func(), p *testdocker.Proxy){
		"given up":   func(cancel func(), _ *testdocker.Proxy) { cancel() },
		"broken off": func(_ func(), p *testdocker.Proxy) { p.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := testdocker.NewProxy(t)
			var once sync.Once
			p.Before(func(_, path string) {
				if strings.Contains(path, "/networks") {
					once.Do(func() { stop(cancel, p) })
				}
			})
			cfg := config(t, testdocker.Busybox(t))
			cfg.Host, cfg.Network = p.Host(), ""
			s, err := docker.New(ctx, cfg)
			if err == nil {
				_, terr := s.Terminate(t.Context())
				t.Fatal("no error", errors.Join(terr, s.Close()))
			}
			want := map[bool]error{true: context.Canceled, false: primitives.ErrUnavailable}[name == "given up"]
			if !errors.Is(err, want) || strings.Contains(err.Error(), "set it to none") {
				t.Errorf("got %v, want %v", err, want)
			}
		})
	}
}
