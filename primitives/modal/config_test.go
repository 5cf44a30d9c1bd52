package modal_test

import (
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

func TestABadConfigurationIsRefusedWithTheNameOfTheField(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*modal.Config)
	}{
		{"app", func(c *modal.Config) { c.App = "a b" }},
		{"app", func(c *modal.Config) { c.App = strings.Repeat("a", 65) }},
		{"environment", func(c *modal.Config) { c.Environment = "a/b" }},
		{"name", func(c *modal.Config) { c.Name = "a/b" }},
		{"name", func(c *modal.Config) { c.Name = "sb-mine" }},
		{"runner", func(c *modal.Config) { c.Runner = "" }},
		{"user", func(c *modal.Config) { c.User = "a:b:c" }},
		{"secrets", func(c *modal.Config) { c.Secrets = []string{"good", ""} }},
		{"image", func(c *modal.Config) { c.Image = "" }},
		{"image", func(c *modal.Config) { c.Image = "debian:12\nRUN evil" }},
		{"dockerfile[1]", func(c *modal.Config) { c.Dockerfile = []string{"RUN true", "from debian"} }},
		{"dockerfile[0]", func(c *modal.Config) { c.Dockerfile = []string{"COPY a b"} }},
		{"dockerfile[0]", func(c *modal.Config) { c.Dockerfile = []string{"ADD a b"} }},
		{"reserve_cpus", func(c *modal.Config) { c.ReserveCPUs = -1 }},
		{"reserve_cpus", func(c *modal.Config) { c.ReserveCPUs = math.NaN() }},
		{"reserve_cpus", func(c *modal.Config) { c.ReserveCPUs = 1 << 20 }},
		{"cpus", func(c *modal.Config) { c.CPUs = math.NaN() }},
		{"cpus", func(c *modal.Config) { c.CPUs = 1 << 20 }},
		{"cpus", func(c *modal.Config) { c.ReserveCPUs, c.CPUs = 2, 1 }},
		{"reserve_memory", func(c *modal.Config) { c.ReserveMemory = 1 << 20 }},
		{"reserve_memory", func(c *modal.Config) { c.ReserveMemory = -1 }},
		{"memory", func(c *modal.Config) { c.Memory = 64 << 20 }},
		{"memory", func(c *modal.Config) { c.ReserveMemory, c.Memory = 1<<30, 512<<20 }},
		{"gpu", func(c *modal.Config) { c.GPU = "A100:0" }},
		{"timeout", func(c *modal.Config) { c.Timeout = 24*time.Hour + 1 }},
		{"timeout", func(c *modal.Config) { c.Timeout = -1 }},
		{"grace", func(c *modal.Config) { c.Grace = time.Second }},
		{"grace", func(c *modal.Config) { c.Grace = -1 }},
		{"expires", func(c *modal.Config) { c.Expires = 25 * time.Hour }},
		{"session", func(c *modal.Config) { c.Session = "a\x00" }},
		{"network", func(c *modal.Config) { c.Network, c.AllowCIDRs = "none", []string{"10.0.0.0/8"} }},
		{"allow_cidrs", func(c *modal.Config) { c.AllowCIDRs = []string{"10.0.0.1"} }},
		{"allow_domains", func(c *modal.Config) { c.AllowDomains = []string{"https://example.com"} }},
		{"ports[1]", func(c *modal.Config) { c.Ports = []int{80, 0} }},
		{"ports[1]", func(c *modal.Config) { c.Ports = []int{80, 80} }},
		{"workspace", func(c *modal.Config) { c.Workspace = "here" }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"data": "v"} }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"/agentenv/sandbox": "v"} }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"/data": ""} }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"/workspace/cache": "v"} }},
		{"workspace_path", func(c *modal.Config) { c.WorkspacePath = "src" }},
		{"workspace_path", func(c *modal.Config) { c.WorkspacePath = "/agentenv/w" }},
		{"ready", func(c *modal.Config) { c.Ready = &modal.Probe{} }},
		{"ready", func(c *modal.Config) { c.Ready = &modal.Probe{Port: 80, Command: []string{"true"}} }},
		{"ready.port", func(c *modal.Config) { c.Ready = &modal.Probe{Port: 1 << 16} }},
		{"labels", func(c *modal.Config) { c.Labels = map[string]string{"agentenv-owner": "me"} }},
		{"labels", func(c *modal.Config) { c.Labels = map[string]string{"": "x"} }},
		{"env", func(c *modal.Config) { c.Env = map[string]string{"A": strings.Repeat("x", 40<<10)} }},
	} {
		t.Run(c.field, func(t *testing.T) {
			cfg := modal.Config{Spec: primitives.Spec{Image: "debian:12"}, Runner: "/envrunner"}
			c.change(&cfg)
			err := cfg.Validate()
			if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), c.field+": ") {
				t.Errorf("the error is %v, want fs.ErrInvalid that names %s", err, c.field)
			}
			if _, nerr := modal.New(t.Context(), cfg); !errors.Is(nerr, fs.ErrInvalid) {
				t.Errorf("New: %v, want fs.ErrInvalid", nerr)
			}
		})
	}
}

func TestAConfigurationWithEverythingInItIsValid(t *testing.T) {
	cfg := modal.Config{Spec: primitives.Spec{Image: "im-123", Name: "mine", User: "a:b", Env: map[string]string{"A": "1", "B": ""}, Workspace: "/data/work", CPUs: 2, Memory: 1 << 30, Ports: []int{80, 8080}, Labels: map[string]string{"team": "a"}, Grace: 10 * time.Second, Keep: true, Session: "s"}, Provider: modal.Provider{App: "app", Environment: "main", Dockerfile: []string{"RUN true", "COPY --from=golang:1 /a /b", "ADD https://example.com/a /a"}, Secrets: []string{"s"}, Volumes: map[string]string{"/data": "v"}, ReserveCPUs: 0.5, ReserveMemory: 512 << 20, GPU: "A100-80GB:4", Cloud: "aws", Regions: []string{"us-east"}, AllowCIDRs: []string{"10.0.0.0/8"}, AllowDomains: []string{"*.example.com"}, Ready: &modal.Probe{Port: 80}, Timeout: 60 * time.Second}, Runner: "/envrunner"}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestASettingThatModalDoesNotHaveIsRefusedByName(t *testing.T) {
	for field, spec := range map[string]primitives.Spec{
		"network":        {Image: "debian:12", Network: "bridge"},
		"workspace_path": {Image: "debian:12", Workspace: "/work", WorkspacePath: "/src"},
	} {
		err := modal.Config{Spec: spec, Runner: "/envrunner"}.Validate()
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("the error is %v, want errors.ErrUnsupported that names %s", err, field)
		}
	}
}

func TestARunnerThatIsNotThereIsRefusedBeforeAnyCall(t *testing.T) {
	_, err := modal.New(t.Context(), modal.Config{Spec: primitives.Spec{Image: "debian:12"}, Runner: t.TempDir() + "/none"})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "runner: ") {
		t.Errorf("the error is %v, want fs.ErrNotExist that names runner", err)
	}
}
