package docker_test

import (
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// newerEngine is a proxy to the real engine that simulates a newer version: it accepts only a newer
// version of the API, and omits the fields that this version has dropped.
type newerEngine struct {
	version string

	mu    sync.Mutex
	paths []string
}

// drop removes the fields from an answer that newer versions do not have.
func drop(answer any) {
	switch answer := answer.(type) {
	case []any:
		for _, one := range answer {
			drop(one)
		}
	case map[string]any:
		settings, _ := answer["NetworkSettings"].(map[string]any)
		for _, name := range []string{
			"VirtualSize", "Container", "ContainerConfig", "DockerVersion", "Parent", // of images
			"MacAddress", "IPAddress", "Gateway", "Bridge", "SandboxKey", // of containers, at the top of their network settings
		} {
			delete(answer, name)
			delete(settings, name)
		}
	}
}

func (e *newerEngine) serve(t *testing.T) (host string) {
	t.Helper()
	proxy := toEngine(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = strings.Replace(r.Out.URL.Path, "/v"+e.version+"/", "/v1.41/", 1)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Api-Version", e.version)
			if !strings.HasSuffix(r.Request.URL.Path, "/json") || r.StatusCode != http.StatusOK {
				return nil
			}
			var answer any
			if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
				return err
			}
			drop(answer)
			b, err := json.Marshal(answer)
			setBody(r, b)
			return err
		},
	})
	return standIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.paths = append(e.paths, r.URL.Path)
		e.mu.Unlock()
		if r.URL.Path != "/_ping" && !strings.HasPrefix(r.URL.Path, "/v"+e.version+"/") {
			http.Error(w, "only version "+e.version, http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
}

func TestANewerEngine(t *testing.T) {
	t.Parallel()
	e := &newerEngine{version: "1.51"}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host, cfg.NoSocket = e.serve(t), true
	cfg.Network, cfg.Publish = "bridge", []docker.Port{{Container: 80}}
	s := open(t, cfg)
	if got := output(t, s, "echo", "hello"); got != "hello\n" {
		t.Errorf("got %q", got)
	}
	if ports, err := s.Ports(t.Context()); err != nil || len(ports) != 1 || ports[0].Address == "" {
		t.Errorf("ports: %+v, %v", ports, err)
	}
	second, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, second, "echo", "again"); got != "again\n" {
		t.Errorf("got %q", got)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.paths, "/v1.51/containers/create") {
		t.Errorf("the engine was asked for %q", e.paths)
	}
}
