package testmodal

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The limits of a sandbox, similar to Modal's.
const (
	maxMilliCPU    = 64_000
	maxMemoryMB    = 344_064
	maxGPUs        = 8
	maxTimeoutSecs = 24 * 60 * 60
	maxTags        = 50
)

var (
	knownClouds  = []string{"", "auto", "aws", "gcp", "oci", "azure"}
	knownRegions = regexp.MustCompile(`^(us|eu|ap|uk|ca|me|sa|af|mx|au|jp)(-[a-z]+)*(-?[0-9]+)?$`)
	knownDomain  = regexp.MustCompile(`^(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}$`)
	knownGPUs    = []string{"any", "t4", "l4", "a10", "a10g", "l40s", "a100", "a100-40gb", "a100-80gb", "h100", "h100!", "h200", "b200"}
	knownName    = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,63}$`)
)

// invalid returns the error for an invalid request.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkDefinition returns an error for a definition that Modal would refuse.
func checkDefinition(def *pb.Sandbox, tags []*pb.SandboxTag) error {
	timeout := def.GetTimeoutSecs()
	placement := def.GetSchedulerPlacement()
	switch {
	case timeout < 1 || timeout > maxTimeoutSecs:
		return invalid("Sandbox timeout must be between 1 and %d seconds, got %d", maxTimeoutSecs, timeout)
	case !slices.Contains(knownClouds, def.GetCloudProviderStr()):
		return invalid("Invalid cloud provider: %s", def.GetCloudProviderStr())
	case def.GetWorkdir() != "" && !strings.HasPrefix(def.GetWorkdir(), "/"):
		return invalid("Workdir must be an absolute path, got %s", def.GetWorkdir())
	case def.GetName() != "" && !knownName.MatchString(def.GetName()):
		return invalid("Invalid Sandbox name: %s", def.GetName())
	case len(tags) > maxTags:
		return invalid("A Sandbox has at most %d tags, got %d", maxTags, len(tags))
	}
	for _, region := range placement.GetRegions() {
		if !knownRegions.MatchString(region) {
			return invalid("Invalid region: %s", region)
		}
	}
	for _, check := range []error{
		checkResources(def.GetResources()), checkNetwork(def.GetNetworkAccess()), checkPorts(def.GetOpenPorts().GetPorts()),
	} {
		if check != nil {
			return check
		}
	}
	return nil
}

func checkResources(r *pb.Resources) error {
	gpu := r.GetGpuConfig()
	switch {
	case max(r.GetMilliCpu(), r.GetMilliCpuMax()) > maxMilliCPU:
		return invalid("CPU request must be at most %d cores", maxMilliCPU/1000)
	case max(r.GetMemoryMb(), r.GetMemoryMbMax()) > maxMemoryMB:
		return invalid("Memory request must be at most %d MiB", maxMemoryMB)
	case gpu.GetCount() > maxGPUs:
		return invalid("GPU count must be at most %d", maxGPUs)
	case gpu.GetGpuType() != "" && !slices.Contains(knownGPUs, strings.ToLower(gpu.GetGpuType())):
		return invalid("Unknown GPU type: %s", gpu.GetGpuType())
	}
	return nil
}

func checkNetwork(access *pb.NetworkAccess) error {
	for _, cidr := range access.GetAllowedCidrs() {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return invalid("Invalid CIDR (outbound IPv4): %s", cidr)
		}
	}
	for _, domain := range access.GetAllowedDomains() {
		if !knownDomain.MatchString(domain) {
			return invalid("Invalid domain: %s", domain)
		}
	}
	return nil
}

func checkPorts(ports []*pb.PortSpec) error {
	seen := map[uint32]bool{}
	for _, p := range ports {
		if p.GetPort() < 1 || p.GetPort() > 65535 || seen[p.GetPort()] {
			return invalid("Invalid port: %d", p.GetPort())
		}
		seen[p.GetPort()] = true
	}
	return nil
}
