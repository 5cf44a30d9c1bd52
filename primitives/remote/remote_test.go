package remote_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
	"github.com/agentenv-dev/agentenv/primitives/remote"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Exit(testdocker.Main(m)) }

const token = "token-of-the-tests"

// addressVariable has the address of the server for the client processes of the suite.
const addressVariable = "AGENTENV_TEST_SERVER"

// serve starts a server that ends with the test, or before when stop is called, and returns its address.
func serve(t testing.TB, defaults environment.Config) (url string, stop func()) {
	t.Helper()
	runner, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defaults.Runner = runner
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(nil)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Host: h, Token: token, Sandboxes: true, Defaults: defaults})
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}

// onThisMachine is a configuration whose sandboxes are local ones in a folder of the test.
func onThisMachine(t testing.TB) environment.Config {
	t.Helper()
	return environment.Config{Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "root")}}}
}

// TestContract runs the groups that a connection through a server can affect, as that of ssh does.
func TestContract(t *testing.T) {
	if os.Getenv("PRIMITIVESTEST_CLIENT") == "" { // client processes use the server of this one
		url, _ := serve(t, onThisMachine(t))
		t.Setenv(addressVariable, url)
	}
	provider := at(os.Getenv(addressVariable))
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"exec", "streams", "ending", "lifecycle", "forward"},
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return provider.Create(ctx, primitives.Spec{})
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return provider.Attach(ctx, id)
		},
		Provider: func(string) (primitives.Provider, primitives.Spec) { return provider, primitives.Spec{} },
	})
}

// TestContractInDocker runs the rules about clients, and about sandboxes that end without them, with containers.
func TestContractInDocker(t *testing.T) {
	image := testdocker.Busybox(t)
	if os.Getenv("PRIMITIVESTEST_CLIENT") == "" {
		url, _ := serve(t, environment.Config{Sandbox: environment.Sandbox{
			Type: "docker", Provider: &docker.Provider{}, Spec: primitives.Spec{Image: image, Network: "none", Labels: testdocker.Labels()},
		}})
		t.Setenv(addressVariable, url)
	}
	provider := remote.Provider{Server: os.Getenv(addressVariable), Token: token, Sandbox: "docker"}
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"lifecycle"},
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return provider.Create(ctx, primitives.Spec{})
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return provider.Attach(ctx, id)
		},
		Destroy: func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return testdocker.Engine(t).ContainerRemove(ctx, p.ID(), container.RemoveOptions{Force: true, RemoveVolumes: true})
		},
		Provider: func(string) (primitives.Provider, primitives.Spec) { return provider, primitives.Spec{} },
	})
}
