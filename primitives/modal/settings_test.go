package modal_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

func TestTheEnvironmentOfCommands(t *testing.T) {
	s := newServer(t)
	s.AddSecret("keys", map[string]string{"FROM_SECRET": "secret", "OVER": "secret"})
	cfg := config(t)
	cfg.Dockerfile = []string{"ENV FROM_IMAGE=image OVER=image"}
	cfg.Secrets = []string{"keys"}
	cfg.Env = map[string]string{"FROM_CONFIG": "config", "OVER": "config"}
	box := open(t, cfg)
	script := `echo "$FROM_IMAGE $FROM_SECRET $FROM_CONFIG $OVER"; [ "$HOME" = ` + box.Paths().Home + ` ]`
	if got := run(t, box, script); got != "image secret config config\n" {
		t.Errorf("a command sees %q", got)
	}
	again, err := modal.Attach(t.Context(), modal.Config{}, box.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, again, script); got != "image secret config config\n" {
		t.Errorf("through another handle a command sees %q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestVariablesAreOnNoCommandLine(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Env = map[string]string{"TOKEN": "hunter2", "MULTI": "a\nb"}
	script := `echo "$TOKEN $MULTI"; env | grep -c AGENTENV_VAR; cat /proc/[0-9]*/cmdline | grep -c 'hunter[2]'; true`
	if got := run(t, open(t, cfg), script); got != "hunter2 a\nb\n0\n0\n" {
		t.Errorf("a command sees %q", got)
	}
}

func TestTheImageIsBuiltOfTheDockerfile(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Dockerfile = []string{"RUN mkdir -p /opt/tool && echo built > /opt/tool/mark", "WORKDIR /opt/tool"}
	box := open(t, cfg)
	if got := run(t, box, "cat /opt/tool/mark"); got != "built\n" {
		t.Errorf("the image has %q", got)
	}
}

func TestAWorkspaceOnAVolumeOutlivesTheSandboxAndCannotBeCopied(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Volumes, cfg.Workspace = map[string]string{"/data": "shared"}, "/data"
	first := open(t, cfg)
	if got := first.Paths().Workspace; got != "/data" {
		t.Errorf("the workspace is %s", got)
	}
	if err := first.WriteFile(t.Context(), "f", strings.NewReader("from the first"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if can := first.Capabilities(); can.Snapshot || can.Fork {
		t.Errorf("the capabilities are %+v", can)
	}
	_, err := primitives.Fork(t.Context(), first, 1)
	expectError(t, "Fork", err, errors.ErrUnsupported, "volume")
	if _, err := first.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := primitives.ReadFile(t.Context(), open(t, cfg), "f", 0)
	if err != nil || string(b) != "from the first" {
		t.Errorf("the second sandbox reads %q, %v", b, err)
	}
}

func TestWhoChangesTheRecordInTheSandboxDoesNotGetCopiesOfIt(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Network = "none"
	box := open(t, cfg)
	run(t, box, `sed -i 's/"network":"none"/"network":""/' /agentenv/settings.json`)
	again, err := modal.Attach(t.Context(), cfg, box.ID())
	if err != nil {
		t.Fatal(err)
	}
	_, err = again.Fork(t.Context(), 1)
	expectError(t, "Fork", err, errors.ErrUnsupported, "changed")
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestEverySettingReachesModal(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	cfg.ReserveCPUs, cfg.CPUs, cfg.ReserveMemory, cfg.Memory = 0.5, 2, 256<<20, 1<<30
	cfg.Cloud, cfg.Regions, cfg.Name = "aws", []string{"us-east", "eu-west"}, "mine"
	cfg.AllowCIDRs, cfg.AllowDomains, cfg.Ports = []string{"10.0.0.0/8"}, []string{"*.example.com"}, []int{8080}
	cfg.Timeout, cfg.Grace = 10*time.Minute, 30*time.Second
	def := s.Definition(open(t, cfg).ID())
	resources, network := def.GetResources(), def.GetNetworkAccess()
	got := fmt.Sprint(
		resources.GetMilliCpu(), resources.GetMilliCpuMax(), resources.GetMemoryMb(), resources.GetMemoryMbMax(),
		def.GetCloudProviderStr(), def.GetSchedulerPlacement().GetRegions(), def.GetName(),
		network.GetNetworkAccessType(), network.GetAllowedCidrs(), network.GetAllowedDomains(),
		def.GetOpenPorts().GetPorts()[0].GetPort(), def.GetOpenPorts().GetPorts()[0].GetUnencrypted(),
		def.GetTimeoutSecs(), def.GetIdleTimeoutSecs(),
	)
	want := fmt.Sprint(500, 2000, 256, 1024, "aws", cfg.Regions, "mine",
		pb.NetworkAccess_ALLOWLIST, cfg.AllowCIDRs, cfg.AllowDomains, 8080, false, 600, 30)
	if got != want {
		t.Errorf("Modal got\n%s, want\n%s", got, want)
	}
}

func TestOnlyDomainsThatAreGivenCanBeReached(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	cfg.AllowDomains, cfg.Keep = []string{"example.com"}, true
	def := s.Definition(open(t, cfg).ID())
	access := def.GetNetworkAccess()
	if access.GetNetworkAccessType() != pb.NetworkAccess_ALLOWLIST || len(access.GetAllowedCidrs()) > 0 || len(access.GetAllowedDomains()) != 1 {
		t.Errorf("Modal got %v", access)
	}
	if def.GetIdleTimeoutSecs() != 0 {
		t.Errorf("one that is kept ends when it is idle for %d seconds", def.GetIdleTimeoutSecs())
	}
}

func TestPortsHaveAddresses(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Ports = []int{8080}
	box := open(t, cfg)
	ports, err := box.Ports(t.Context())
	if err != nil || len(ports) != 1 || ports[0].Number != 8080 || !strings.HasPrefix(ports[0].Address, "https://") {
		t.Errorf("%v, %v", ports, err)
	}
}

func TestASandboxWithAGraphicsProcessorIsLikeOthers(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	cfg.GPU = "T4"
	box := open(t, cfg)
	if gpu := s.Definition(box.ID()).GetResources().GetGpuConfig(); gpu.GetGpuType() != "T4" || gpu.GetCount() != 1 {
		t.Errorf("Modal got %v", gpu)
	}
	if s.Calls("SandboxCreate") != 1 {
		t.Errorf("it is not made by the older method: %v", s.CallCounts())
	}
	if got := run(t, box, "echo on"); got != "on\n" {
		t.Errorf("it says %q", got)
	}
	if state, err := box.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("Poll: %+v, %v", state, err)
	}
	again, err := modal.Attach(t.Context(), cfg, box.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	_, err = box.Stat(t.Context(), ".")
	expectError(t, "Stat", err, primitives.ErrTerminated)
}

func TestNewWaitsUntilTheSandboxIsReady(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Dockerfile = []string{"RUN touch /opt/ready"}
	cfg.Ready = &modal.Probe{Command: []string{"test", "-e", "/opt/ready"}}
	open(t, cfg)
	cfg.Ready = &modal.Probe{Command: []string{"test", "-e", "/opt/never"}, Timeout: time.Second}
	_, err := modal.New(t.Context(), cfg)
	expectError(t, "New", err, primitives.ErrUnavailable, "ready: ")
}

func TestASandboxWithoutNetworkReachesNothing(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Network = "none"
	box := open(t, cfg)
	if got := run(t, box, "tail -n +3 /proc/net/dev | grep -v ' lo:' | wc -l"); got != "0\n" {
		t.Errorf("it has %s interfaces beside its own", strings.TrimSpace(got))
	}
}
