package modal_test

import (
	"errors"
	"io/fs"
	"math"
	"strings"
	"testing"

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
		{"cpu", func(c *modal.Config) { c.CPU = -1 }},
		{"cpu", func(c *modal.Config) { c.CPU = math.NaN() }},
		{"cpu", func(c *modal.Config) { c.CPU = 1 << 20 }},
		{"cpu_limit", func(c *modal.Config) { c.CPULimit = 1 }},
		{"cpu_limit", func(c *modal.Config) { c.CPU, c.CPULimit = 2, 1 }},
		{"memory_mib", func(c *modal.Config) { c.MemoryMiB = 1 }},
		{"memory_mib", func(c *modal.Config) { c.MemoryMiB = -1 }},
		{"memory_limit_mib", func(c *modal.Config) { c.MemoryLimitMiB = 1024 }},
		{"memory_limit_mib", func(c *modal.Config) { c.MemoryMiB, c.MemoryLimitMiB = 1024, 512 }},
		{"gpu", func(c *modal.Config) { c.GPU = "A100:0" }},
		{"timeout_seconds", func(c *modal.Config) { c.TimeoutSeconds = 24*60*60 + 1 }},
		{"timeout_seconds", func(c *modal.Config) { c.TimeoutSeconds = -1 }},
		{"idle_timeout_seconds", func(c *modal.Config) { c.IdleTimeoutSeconds = 1 }},
		{"session", func(c *modal.Config) { c.Session = "a\x00" }},
		{"block_network", func(c *modal.Config) { c.BlockNetwork, c.AllowCIDRs = true, []string{"10.0.0.0/8"} }},
		{"allow_cidrs", func(c *modal.Config) { c.AllowCIDRs = []string{"10.0.0.1"} }},
		{"allow_domains", func(c *modal.Config) { c.AllowDomains = []string{"https://example.com"} }},
		{"ports[1]", func(c *modal.Config) { c.Ports = []int{80, 0} }},
		{"ports[1]", func(c *modal.Config) { c.Ports = []int{80, 80} }},
		{"workspace", func(c *modal.Config) { c.Workspace = "here" }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"data": "v"} }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"/agentenv/sandbox": "v"} }},
		{"volumes", func(c *modal.Config) { c.Volumes = map[string]string{"/data": ""} }},
		{"ready", func(c *modal.Config) { c.Ready = &modal.Probe{} }},
		{"ready", func(c *modal.Config) { c.Ready = &modal.Probe{Port: 80, Command: []string{"true"}} }},
		{"ready.port", func(c *modal.Config) { c.Ready = &modal.Probe{Port: 1 << 16} }},
		{"tags", func(c *modal.Config) { c.Tags = map[string]string{"agentenv-owner": "me"} }},
		{"tags", func(c *modal.Config) { c.Tags = map[string]string{"": "x"} }},
		{"env", func(c *modal.Config) { c.Env = []string{"A=" + strings.Repeat("x", 40<<10)} }},
	} {
		t.Run(c.field, func(t *testing.T) {
			cfg := modal.Config{Image: "debian:12", Runner: "/envrunner"}
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
	cfg := modal.Config{
		App: "app", Environment: "main", Image: "im-123", Dockerfile: []string{"RUN true", "COPY --from=golang:1 /a /b", "ADD https://example.com/a /a"},
		Name: "mine", User: "a:b", Env: []string{"A=1", "B"}, Secrets: []string{"s"}, Workspace: "/data/work",
		Volumes: map[string]string{"/data": "v"}, CPU: 0.5, CPULimit: 2, MemoryMiB: 512, MemoryLimitMiB: 1024, GPU: "A100-80GB:4",
		Cloud: "aws", Regions: []string{"us-east"}, AllowCIDRs: []string{"10.0.0.0/8"}, AllowDomains: []string{"*.example.com"},
		Ports: []int{80, 8080}, Ready: &modal.Probe{Port: 80}, Tags: map[string]string{"team": "a"},
		TimeoutSeconds: 60, IdleTimeoutSeconds: 10, Keep: true, Session: "s", Runner: "/envrunner",
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestARunnerThatIsNotThereIsRefusedBeforeAnyCall(t *testing.T) {
	_, err := modal.New(t.Context(), modal.Config{Image: "debian:12", Runner: t.TempDir() + "/none"})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "runner: ") {
		t.Errorf("the error is %v, want fs.ErrNotExist that names runner", err)
	}
}
