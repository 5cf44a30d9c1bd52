package docker_test

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// retouched is a proxy to the real engine that changes its answers.
type retouched struct {
	// answer changes an answer that is a JSON object. It may be called from several
	// goroutines.
	answer func(method, path string, status int, answer map[string]any)
	host   string // of the engine; empty means that of all tests

	mu    sync.Mutex
	asked []string // the paths
}

func (e *retouched) serve(t *testing.T) (host string) {
	t.Helper()
	if e.host == "" {
		e.host = testdocker.Engine(t).DaemonHost()
	}
	return standIn(t, toEngineAt(t, e.host, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			e.mu.Lock()
			e.asked = append(e.asked, r.In.URL.Path)
			e.mu.Unlock()
		},
		ModifyResponse: e.change,
	}))
}

func (e *retouched) change(r *http.Response) error {
	path := r.Request.URL.Path
	if r.Header.Get("Content-Type") != "application/json" || strings.HasSuffix(path, "/events") || strings.HasSuffix(path, "/wait") {
		return nil // not JSON, or a streamed answer
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var answer map[string]any
	if json.Unmarshal(b, &answer) == nil {
		e.answer(r.Request.Method, path, r.StatusCode, answer)
		if b, err = json.Marshal(answer); err != nil {
			return err
		}
	}
	setBody(r, b)
	return nil
}

// count returns how often a path with this suffix was requested.
func (e *retouched) count(end string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, path := range e.asked {
		if strings.HasSuffix(path, end) {
			n++
		}
	}
	return n
}

// forget clears the recorded requests.
func (e *retouched) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = nil
}

// warning returns an engine that adds this warning to the creation of every container.
func warning(text string) *retouched {
	return &retouched{answer: func(method, path string, _ int, answer map[string]any) {
		if method == http.MethodPost && strings.HasSuffix(path, "/containers/create") {
			answer["Warnings"] = []string{"something of no interest", text}
		}
	}}
}

// Warnings of engines.
const (
	noMemoryLimit = "Your kernel does not support memory limit capabilities or the cgroup is not mounted. Limitation discarded."
	noSwapLimit   = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap."
	noPidsLimit   = "Your kernel does not support PIDs limit capabilities or the cgroup is not mounted. PIDs limit discarded."
	oldPidsLimit  = "Your kernel does not support pids limit capabilities or the cgroup is not mounted. PIDs limit discarded."
)

func TestALimitThatTheEngineDropsIsAnErrorIfItWasAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says   string
		change func(*docker.Config)
		field  string
	}{
		"memory":                      {noMemoryLimit, func(c *docker.Config) { c.Memory = 64 << 20 }, "memory: "},
		"processes":                   {noPidsLimit, func(c *docker.Config) { c.Pids = 100 }, "pids: "},
		"processes, by an old engine": {oldPidsLimit, func(c *docker.Config) { c.Pids = 100 }, "pids: "},
		"processes, kept":             {noPidsLimit, func(c *docker.Config) { c.Pids, c.Keep = 100, true }, "pids: "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			cfg.Host = warning(c.says).serve(t)
			cfg.Labels = maps.Clone(cfg.Labels)
			cfg.Labels["agentenv-test-limit"] = name
			c.change(&cfg)
			s, err := docker.New(t.Context(), cfg)
			if err == nil {
				_, terr := s.Terminate(t.Context())
				t.Fatal("no error", errors.Join(terr, s.Close()))
			}
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), c.field) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			left, err := testdocker.Engine(t).ContainerList(t.Context(), container.ListOptions{
				All: true, Filters: filters.NewArgs(filters.Arg("label", "agentenv-test-limit="+name)),
			})
			if err != nil || len(left) > 0 {
				t.Errorf("%d containers are left, %v", len(left), err)
			}
		})
	}
}

func TestADroppedDefaultLimitIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says   string
		memory primitives.Size
		want   string
	}{
		"memory":                          {noMemoryLimit, 0, "memory"},
		"processes":                       {noPidsLimit, 0, "pids"},
		"swap":                            {noSwapLimit, 0, "swap"},
		"swap, beside a limit that holds": {noSwapLimit, 64 << 20, "swap"},
	} {
		t.Run(name, func(t *testing.T) {
			var (
				mu   sync.Mutex
				told []string
			)
			cfg := config(t, testdocker.Busybox(t))
			cfg.Host, cfg.Memory = warning(c.says).serve(t), c.memory
			cfg.Progress = func(message string) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, message)
			}
			s := open(t, cfg)
			if got := output(t, s, "echo", "works"); got != "works\n" {
				t.Errorf("got %q", got)
			}
			copies, err := s.Fork(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range copies {
				_, err := one.Terminate(t.Context())
				if err := errors.Join(err, one.Close()); err != nil {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(told) != 1 || !strings.Contains(told[0], c.want) || !strings.Contains(told[0], c.says) {
				t.Errorf("told: %q", told)
			}
		})
	}
}

func TestADiskLimitIsRefusedOnAStoreThatIgnoresIt(t *testing.T) {
	t.Parallel()
	e := &retouched{answer: func(_, path string, _ int, answer map[string]any) {
		if strings.HasSuffix(path, "/info") {
			answer["Driver"] = "overlayfs"
			answer["DriverStatus"] = [][]string{{"driver-type", "io.containerd.snapshotter.v1"}}
		}
	}}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host, cfg.Disk = e.serve(t), 64<<20
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		_, terr := s.Terminate(t.Context())
		t.Fatal("no error", errors.Join(terr, s.Close()))
	}
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "disk: ") {
		t.Errorf("got %v", err)
	}
	if e.count("/containers/create") > 0 {
		t.Error("the engine got a request for a container")
	}
}
