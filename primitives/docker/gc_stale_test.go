package docker_test

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
)

// GC asks for all containers at once, and looks at their owners later. In between a sandbox may be started, and its program die:
// now it is in its grace.
func TestGCLeavesASandboxThatWasStartedAfterTheList(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	cfg := config(t, testdocker.Busybox(t))
	s := open(t, cfg)
	labels := owners(t, eng, s.ID())["alive"]
	program := exec.CommandContext(t.Context(), "sleep", "100000")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	die := func() error {
		if err := program.Process.Kill(); err != nil {
			return err
		}
		_ = program.Wait() // it was killed
		return nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", program.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("agentenv-test-stale-%d-%d", os.Getpid(), time.Now().UnixNano())
	labels["dev.agentenv.sandbox"] = name
	labels["dev.agentenv.owner.pid"], labels["dev.agentenv.owner.started"] = strconv.Itoa(program.Process.Pid), strings.Fields(string(stat))[21]
	fabricate(t, eng, name, "created", &container.Config{Image: testdocker.Busybox(t), Labels: labels}, false)

	listed := false
	cfg.Host = standIn(t, toEngine(t, &httputil.ReverseProxy{FlushInterval: -1, ModifyResponse: func(r *http.Response) error {
		if listed || !strings.HasSuffix(r.Request.URL.Path, "/containers/json") {
			return nil
		}
		listed = true
		if err := eng.ContainerStart(t.Context(), name, container.StartOptions{}); err != nil {
			return err
		}
		return die()
	}}))
	removed, err := cfg.GC(t.Context(), primitives.GCOptions{})
	if err != nil || !listed {
		t.Fatalf("GC: %v, %v, listed %t", removed, err, listed)
	}
	if found, err := eng.ContainerInspect(t.Context(), name); err != nil || !found.State.Running {
		t.Errorf("the sandbox is in its grace, and GC has removed %+v: %v", removed, err)
	}
}
