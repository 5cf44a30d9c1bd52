package docker_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// script runs a shell command, whatever its exit status.
func script(t *testing.T, s *guest.Sandbox, command string) primitives.RunResult {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", command}}, primitives.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// outlivesCommands checks that the kernel kills commands before the first process when memory runs
// out.
func outlivesCommands(t *testing.T, s *guest.Sandbox) {
	t.Helper()
	for range 20 { // a command may fork before it is offered to the OOM killer
		p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "sleep 1000 & echo $$ $!; wait"}, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
		var id, childID string
		if _, serr := fmt.Sscan(line, &id, &childID); err != nil || serr != nil {
			t.Fatal(line, err, serr)
		}
		await(t, func() bool { // a child of a fork in progress is found a moment later
			var first, command, child int
			got := output(t, s, "cat", "/proc/1/oom_score_adj", "/proc/"+id+"/oom_score_adj", "/proc/"+childID+"/oom_score_adj")
			if _, err := fmt.Sscan(got, &first, &command, &child); err != nil {
				t.Fatalf("the scores are %q", got)
			}
			return first < command && first < child
		})
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLimitsHold(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.CPUs, cfg.Memory, cfg.Pids, cfg.ReadOnly = 0.5, 64<<20, 64, true
	cfg.Labels = maps.Clone(cfg.Labels)
	cfg.Labels["mine"] = "yes"
	s := open(t, cfg)

	t.Run("processor", func(t *testing.T) {
		got := script(t, s, "cat /sys/fs/cgroup/cpu.max || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us").Stdout
		var quota, period int
		if f := strings.Fields(string(got)); len(f) == 2 {
			quota, _ = strconv.Atoi(f[0])
			period, _ = strconv.Atoi(f[1])
		}
		if quota <= 0 || quota*2 != period {
			t.Errorf("the control group says %q", got)
		}
	})
	t.Run("memory", func(t *testing.T) {
		res := script(t, s, `x=$(head -c 100000000 /dev/zero | busybox tr '\0' x); echo ${#x}`)
		if res.Status.Reason != primitives.ReasonOOM || res.Status.Signal != primitives.SIGKILL {
			t.Errorf("got %+v: %q", res.Status, res.Stdout)
		}
	})
	t.Run("memory of others", func(t *testing.T) {
		outlivesCommands(t, s)
	})
	t.Run("processes", func(t *testing.T) {
		res := script(t, s, "i=0; while [ $i -lt 100 ]; do sleep 100 & i=$((i+1)); done")
		if res.Status.Success() || !bytes.Contains(res.Stderr, []byte("fork")) {
			t.Errorf("got %+v: %q", res.Status, res.Stderr)
		}
		script(t, s, "kill -9 -1") // background processes; kill spares itself
	})
	t.Run("read-only", func(t *testing.T) {
		res := script(t, s, "echo x >/etc/x; echo x >/agentenv/envrunner; echo x >/tmp/x && echo x >x && echo written")
		if string(res.Stdout) != "written\n" || bytes.Count(res.Stderr, []byte("Read-only file system"))+bytes.Count(res.Stderr, []byte("Text file busy")) != 2 {
			t.Errorf("got %+v: %q %q", res.Status, res.Stdout, res.Stderr)
		}
	})
	t.Run("privileges", func(t *testing.T) {
		got := string(script(t, s, "cat /proc/self/status /proc/1/status").Stdout)
		for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if strings.Count(got, want) != 2 {
				t.Errorf("no %s in %s", want, got)
			}
		}
		if script(t, s, "busybox chown 1000 x").Status.Success() {
			t.Error("root can give files away")
		}
		if _, err := s.Exec(t.Context(), primitives.Command{Args: []string{"id"}, User: "tester"}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "cap_add") {
			t.Errorf("another user's command: %v", err)
		}
	})
	t.Run("the engine's view", func(t *testing.T) {
		found, err := testdocker.Engine(t).ContainerInspect(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		h := found.HostConfig
		if h.Init == nil || *h.Init || h.Privileged || h.MemorySwap != int64(cfg.Memory) || h.LogConfig.Type != "none" || found.Config.Tty || found.Config.Labels["mine"] != "yes" {
			t.Errorf("got %+v, %+v", h, found.Config)
		}
	})
}

func TestWhatIsAddedWorks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "profile.json"), `{
		"defaultAction": "SCMP_ACT_ALLOW",
		"syscalls": [{"names": ["mknod", "mknodat"], "action": "SCMP_ACT_ERRNO"}]
	}`)
	shared, given := filepath.Join(dir, "shared"), filepath.Join(dir, "real", "given")
	writeFile(t, filepath.Join(shared, "f"), "from the host")
	writeFile(t, filepath.Join(given, "f"), "from the host")
	alias := filepath.Join(dir, "alias")
	if err := os.Symlink(filepath.Dir(given), alias); err != nil {
		t.Fatal(err)
	}
	cfg := config(t, testdocker.Busybox(t))
	cfg.CapAdd = []string{"chown", "CAP_FOWNER"}
	cfg.Seccomp = filepath.Join(dir, "profile.json")
	cfg.Mounts = []docker.Mount{{Source: shared, Target: "/shared", ReadOnly: true}, {Source: filepath.Join(alias, "given"), Target: "/given"}}
	cfg.Network = "bridge"
	cfg.Publish = []docker.Port{{Container: 8080}, {Container: 8080, Protocol: "udp"}}
	s := open(t, cfg)

	if res := script(t, s, "touch x && busybox chown 1000:1000 x && busybox stat -c %u:%g x"); string(res.Stdout) != "1000:1000\n" {
		t.Errorf("chown: %+v %q", res, res.Stderr)
	}
	if res := script(t, s, "busybox mkfifo f"); res.Status.Success() || !bytes.Contains(res.Stderr, []byte("not permitted")) {
		t.Errorf("a filtered call: %+v %q", res.Status, res.Stderr)
	}
	res := script(t, s, "cat /shared/f; echo x >/shared/f; echo ' changed' >>/given/f")
	if got, err := os.ReadFile(filepath.Join(given, "f")); err != nil || string(got) != "from the host changed\n" || string(res.Stdout) != "from the host" || !bytes.Contains(res.Stderr, []byte("Read-only")) {
		t.Errorf("mounts: %q, %v; %q %q", got, err, res.Stdout, res.Stderr)
	}

	ports, err := s.Ports(t.Context())
	if err != nil || len(ports) != 2 || ports[0].Protocol != "tcp" || ports[1].Protocol != "udp" || ports[0].Number != 8080 {
		t.Fatalf("ports: %+v, %v", ports, err)
	}
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "echo hello from inside | busybox nc -l -p 8080"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if host, port, err := net.SplitHostPort(ports[0].Address); err != nil || host != "127.0.0.1" || port == "0" {
		t.Errorf("published at %+v", ports[0])
	}
	var got []byte
	await(t, func() bool { // until nc listens
		conn, err := net.Dial("tcp", ports[0].Address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		got, _ = io.ReadAll(conn) // a reset before nc listens
		_ = conn.Close()
		return len(got) > 0
	})
	if string(got) != "hello from inside\n" {
		t.Errorf("got %q", got)
	}
}

func TestUsersByName(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	for user, want := range map[string]string{"tester": "1000 1000\n", "tester:root": "1000 0\n", "1234:tester": "1234 1000\n"} {
		t.Run(user, func(t *testing.T) {
			cfg := cfg
			cfg.User = user
			if got := output(t, open(t, cfg), "sh", "-c", "echo $(id -u) $(id -g)"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
