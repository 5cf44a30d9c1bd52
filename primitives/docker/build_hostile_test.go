package docker_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// rights prints the rights and the limits of a process, except for its capabilities.
const rights = `grep -E 'NoNewPrivs|Seccomp:' /proc/self/status
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.swap.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max \
	/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null
cat /proc/self/limits`

func TestABuildHasTheRightsAndTheLimitsOfASandbox(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"none", "bridge"} {
		t.Run(network, func(t *testing.T) {
			rights := rights
			if network == "bridge" {
				rights += "; ls /sys/class/net"
			}
			cfg := config(t, testdocker.Busybox(t))
			cfg.Network, cfg.Memory, cfg.Pids, cfg.CPUs = network, 256<<20, 99, 0.5
			want := output(t, open(t, cfg), "sh", "-c", rights)
			for _, limit := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "\n268435456\n", "\n99\n", "50000"} {
				if !strings.Contains(want, limit) {
					t.Errorf("a sandbox lacks %q: %s", limit, want)
				}
			}
			b := testBuild(t, "{ "+rights+"; } >/rights || true", "grep Cap /proc/self/status >/caps")
			cfg.Image = build(t, cfg, b).Ref
			s := open(t, cfg)
			if got := output(t, s, "cat", "/rights"); got != want {
				t.Errorf("a build has\n%s, a sandbox\n%s", got, want)
			}
			// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID
			for line := range strings.Lines(output(t, s, "cat", "/caps")) {
				if name, set, _ := strings.Cut(strings.TrimSpace(line), ":\t"); strings.Trim(set, "0") != "db" && name != "CapInh" && name != "CapAmb" {
					t.Errorf("a build has the capabilities %s", line)
				}
			}
		})
	}
}

// What a build installs comes from a network, and no agent runs in it yet.
func TestABuildForASandboxWithoutANetworkHasOne(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Network = "none"
	cfg.Image = build(t, cfg, testBuild(t, "ls /sys/class/net >/networks")).Ref
	s := open(t, cfg)
	if got := output(t, s, "cat", "/networks"); !strings.Contains(got, "eth0") {
		t.Errorf("the build has the networks %q", got)
	}
	if got := output(t, s, "ls", "/sys/class/net"); strings.Contains(got, "eth0") {
		t.Errorf("the sandbox has the networks %q", got)
	}
}

func TestABuildDoesNotDoWhatItsBaseOrders(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	cfg := config(t, committed(t, testdocker.Busybox(t), "ONBUILD RUN touch /ordered", "ONBUILD ADD "+server.URL+"/secret /secret"))
	var told atomic.Int32
	cfg.Progress = func(line string) {
		if strings.Contains(line, "ONBUILD instructions of the image "+cfg.Image) {
			told.Add(1)
		}
	}
	img := build(t, cfg, testBuild(t))
	found, err := testdocker.Engine(t).ImageInspect(t.Context(), img.Ref)
	if err != nil || len(found.Config.OnBuild) > 0 {
		t.Errorf("the image orders %v, %v", found.Config.OnBuild, err)
	}
	if n := told.Load(); n != 1 {
		t.Errorf("%d messages report it, not one", n)
	}
	cfg.Image = img.Ref
	if got := output(t, open(t, cfg), "sh", "-c", "ls -d /ordered /secret /built 2>/dev/null || true"); got != "/built\n" || asked.Load() > 0 {
		t.Errorf("there are %q, and the engine has asked the machine %d times", got, asked.Load())
	}
}

func TestTheUserOfABaseIsNoInstruction(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: testdocker.Busybox(t), Cmd: []string{"true"}, Labels: testdocker.Labels()}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	base, err := eng.ContainerCommit(t.Context(), made.ID, container.CommitOptions{Config: &container.Config{User: "tester\nRUN touch /injected"}})
	if err := errors.Join(err, eng.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := eng.ImageRemove(context.WithoutCancel(t.Context()), base.ID, image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, base.ID)
	cfg.User = "0" // the image's user cannot start a container
	cfg.Image = build(t, cfg, testBuild(t)).Ref
	if got := output(t, open(t, cfg), "sh", "-c", "ls -d /injected /built 2>/dev/null || true"); got != "/built\n" {
		t.Errorf("there are %q", got)
	}
}

func TestABuildDoesNotGetWhatIsForTheSandboxes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Network, cfg.User, cfg.Workspace = "bridge", "tester", t.TempDir()
	cfg.Env, cfg.Labels = map[string]string{"SECRET": "of-the-sandbox"}, map[string]string{"of": "the sandbox"}
	cfg.Publish = []docker.Port{{Container: 80, Host: taken.Addr().(*net.TCPAddr).Port}} // would fail
	img := build(t, cfg, testBuild(t, "env >/env; ls / >/root-folder"))
	if _, ok := img.Labels["of"]; ok {
		t.Errorf("the image has the labels %v", img.Labels)
	}
	if got := output(t, open(t, config(t, img.Ref)), "cat", "/env", "/root-folder"); strings.Contains(got, "of-the-sandbox") || strings.Contains(got, "workspace\n") {
		t.Errorf("the build has seen %s", got)
	}
}
