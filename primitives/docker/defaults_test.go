package docker_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/client"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

func TestASandboxLeavesTheEngineAProcessor(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	info, err := eng.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cpus float64
		want int64
	}{
		"by default": {0, int64(max(info.NCPU-1, 1)) * 1e9},
		"no limit":   {-1, 0},
	} {
		cfg := config(t, testdocker.Busybox(t))
		cfg.CPUs = c.cpus
		s := open(t, cfg)
		found, err := eng.ContainerInspect(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		if found.HostConfig.NanoCPUs != c.want {
			t.Errorf("%s: %d billionths of a processor, want %d", name, found.HostConfig.NanoCPUs, c.want)
		}
		if got := output(t, s, "sh", "-c", "ulimit -c; ulimit -H -c"); got != "0\n0\n" {
			t.Errorf("%s: core files may have %q", name, got)
		}
	}
}

// An engine on XFS may have quotas without reporting them. This one has none.
func TestADefaultLimitOfTheDiskIsOneThatTheEngineMayRefuse(t *testing.T) {
	t.Parallel()
	e := &retouched{answer: func(_, path string, _ int, answer map[string]any) {
		if strings.HasSuffix(path, "/info") {
			answer["Driver"], answer["DriverStatus"] = "overlay2", [][]string{{"Backing Filesystem", "xfs"}}
		}
	}}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host = e.serve(t)
	for name, c := range map[string]struct {
		disk  primitives.Size
		asked int // how often the engine must be asked to make a container
	}{"by default": {0, 2}, "no limit": {-1, 1}} {
		e.forget()
		cfg.Disk = c.disk
		if got := output(t, open(t, cfg), "echo", "hi"); got != "hi\n" {
			t.Errorf("%s: got %q", name, got)
		}
		if got := e.count("/containers/create"); got != c.asked {
			t.Errorf("%s: the engine was asked %d times, want %d", name, got, c.asked)
		}
	}
}

func TestADefaultLimitThatTheEngineCannotSetIsLogged(t *testing.T) {
	t.Parallel()
	e := &retouched{answer: func(_, path string, _ int, answer map[string]any) {
		if strings.HasSuffix(path, "/info") {
			answer["CpuCfsQuota"], answer["Driver"] = false, "vfs"
		}
	}}
	for name, c := range map[string]struct {
		cpus float64
		disk primitives.Size
		want []string
	}{
		"by default": {0, 0, []string{"every processor", "the engine's disk"}},
		"no limits":  {-1, -1, nil},
	} {
		var log bytes.Buffer
		cfg := config(t, testdocker.Busybox(t))
		cfg.Host, cfg.CPUs, cfg.Disk = e.serve(t), c.cpus, c.disk
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: &log})
		s, err := docker.New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		copies, err := s.Fork(t.Context(), 1)
		if err != nil {
			end(t, s)
			t.Fatal(err)
		}
		end(t, copies[0])
		end(t, s) // after this nothing logs
		warned := 0
		for line := range strings.Lines(log.String()) {
			// A sweep also warns of orphans, which other tests leave on the engine for a while.
			if strings.Contains(line, "[WARN]") && !strings.Contains(line, "orphan") {
				warned++
			}
		}
		if warned != len(c.want) {
			t.Errorf("%s: %d warnings: %s", name, warned, &log)
		}
		for _, want := range c.want {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("%s: the log does not say %q once: %s", name, want, &log)
			}
		}
	}
}

func TestACommandMayHaveTheOpenFilesThatTheEngineGrants(t *testing.T) {
	t.Parallel()
	d := testdocker.NewDaemon(t, nil, "--default-ulimit", "nofile=1024:2000")
	cfg := config(t, testdocker.Busybox(t))
	d.Load(t, cfg.Image)
	cfg.Host, cfg.Network = d.Host(), "none"
	if got := output(t, open(t, cfg), "sh", "-c", "ulimit -n; ulimit -H -n"); got != "2000\n2000\n" {
		t.Errorf("open files are limited to %q", got)
	}
}

func TestARuntimeThatTheEngineDoesNotHave(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runtime = "no-such-runtime"
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		_, terr := s.Terminate(t.Context())
		t.Fatal("no error", errors.Join(terr, s.Close()))
	}
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "runtime: ") || !strings.Contains(err.Error(), "runc") {
		t.Errorf("got %v, want fs.ErrNotExist that names the engine's runtimes", err)
	}
}

// underGVisor returns an engine of the test's own with the runtime runsc. It does not use KVM,
// which the kernel of this machine may lack.
func underGVisor(t *testing.T) (docker.Config, *client.Client) {
	t.Helper()
	program, err := exec.LookPath("runsc")
	if err != nil {
		t.Fatalf("install runsc, as e2e/setup.sh does: %v", err)
	}
	runtime := filepath.Join(t.TempDir(), "runsc")
	script := "#!/bin/sh\nexec " + program + " --platform=ptrace --ignore-cgroups --network=none \"$@\"\n"
	if err := os.WriteFile(runtime, []byte(script), 0o755); err != nil { // the engine runs it
		t.Fatal(err)
	}
	d := testdocker.NewDaemon(t, nil, "--add-runtime", "runsc="+runtime)
	cfg := config(t, testdocker.Busybox(t))
	d.Load(t, cfg.Image)
	cfg.Host, cfg.Runtime = d.Host(), "runsc"
	return cfg, d.Engine(t)
}

func TestContractUnderGVisor(t *testing.T) {
	cfg, eng := underGVisor(t)
	if got := output(t, open(t, cfg), "cat", "/proc/version"); !strings.Contains(got, "Linux version 4.4.0 ") {
		t.Fatalf("the kernel is %q, want gVisor's", got)
	}
	h := harness(cfg, -1, eng)
	// The groups streams, ending, archive and watch pass, too, but take minutes. With the release
	// of 2022 in Debian 12 Attach fails and terminals are incomplete.
	h.Groups = []string{"exec", "files"}
	primitivestest.Run(t, h)
}
