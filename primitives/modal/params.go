package modal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	sdk "github.com/modal-labs/modal-client/go"
)

// params converts the configuration to the SDK's parameters.
func (c *client) params(ctx context.Context, cfg config) (*sdk.SandboxCreateParams, error) {
	cpu, cpuLimit := cfg.cpus()
	memory, memoryLimit := cfg.memory()
	p := &sdk.SandboxCreateParams{
		CPU: cpu, CPULimit: cpuLimit, MemoryMiB: memory, MemoryLimitMiB: memoryLimit,
		GPU: cfg.GPU, Cloud: cfg.Cloud, Regions: cfg.Regions, Name: cfg.Name,
		Timeout: cfg.timeout(), EncryptedPorts: cfg.Ports, BlockNetwork: cfg.Network == "none",
	}
	if !cfg.Keep {
		// Modal's idle time runs only while no command runs. The guest is a command, and counts
		// the grace period before it ends.
		p.IdleTimeout = min(cfg.idle(), defaultIdle)
	}
	if len(cfg.AllowCIDRs)+len(cfg.AllowDomains) > 0 {
		// An empty allowlist blocks all destinations of its kind.
		p.OutboundCIDRAllowlist = &sdk.Allowlist{Entries: cfg.AllowCIDRs}
		p.OutboundDomainAllowlist = &sdk.Allowlist{Entries: cfg.AllowDomains}
	}
	for _, name := range cfg.Secrets {
		secret, err := c.Secrets.FromName(ctx, name, &sdk.SecretFromNameParams{Environment: cfg.Environment})
		if err != nil {
			return nil, fmt.Errorf("secrets: %s: %w", name, explain(err))
		}
		p.Secrets = append(p.Secrets, secret)
	}
	for _, at := range slices.Sorted(maps.Keys(cfg.Volumes)) {
		name := cfg.Volumes[at]
		volume, err := c.Volumes.FromName(ctx, name, &sdk.VolumeFromNameParams{Environment: cfg.Environment, CreateIfMissing: true})
		if err != nil {
			return nil, fmt.Errorf("volumes: %s: %w", name, explain(err))
		}
		if p.Volumes == nil {
			p.Volumes = map[string]*sdk.Volume{}
		}
		p.Volumes[at] = volume
	}
	var err error
	switch r := cfg.Ready; {
	case r == nil:
	case r.Port != 0:
		p.ReadinessProbe, err = sdk.NewTCPProbe(r.Port, nil)
	default:
		p.ReadinessProbe, err = sdk.NewExecProbe(r.Command, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("ready: %w", explain(err))
	}
	return p, nil
}

// awaitReady waits until the probe succeeds, if there is one.
func awaitReady(ctx context.Context, box *sdk.Sandbox, probe *Probe) error {
	if probe == nil {
		return nil
	}
	patience := defaultReady
	if probe.Timeout > 0 {
		patience = probe.Timeout
	}
	if err := box.WaitUntilReady(ctx, patience, nil); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("ready: the sandbox was not ready within %v: %w", patience, explain(err))
	}
	return nil
}

// Paths of the guest in the sandbox.
const (
	guestDir      = "/agentenv"
	runnerDir     = guestDir + "/runner" // may be a mounted image
	guestProgram  = runnerDir + "/envrunner"
	guestRoot     = guestDir + "/sandbox"
	guestSettings = guestDir + "/settings.json"
)

// guestArgs returns the command line of the first guest, which keeps the sandbox alive. If the
// image is a snapshot, the guest takes over the session folder in it.
func guestArgs(cfg config) []string {
	stay := cfg.idle()
	if cfg.Keep {
		stay = -1
	}
	args := []string{
		guestProgram, "guest", "--root", guestRoot, "--stay", stay.String(), "--leave-files", "--inherit-env", "--adopt", "-",
		"--env", "MODAL_TASK_ID", "--env", "MODAL_IMAGE_ID", // set by Modal, and different in copies
	}
	if cfg.Workspace != "" {
		args = append(args, "--workspace", cfg.Workspace)
	} else {
		args = append(args, "--workspace-path", cfg.workspacePath())
	}
	if cfg.User != "" {
		args = append(args, "--user", cfg.User)
	}
	return append(args, "--env-from", envPrefix)
}

// envPrefix and a number name the variables that pass Spec.Env to the guest. Its command line
// would expose them to everybody in the sandbox.
const envPrefix = "AGENTENV_VAR_"

// guestEnv returns the variables that pass Spec.Env to the guest.
func guestEnv(cfg config) map[string]string {
	env := make(map[string]string, len(cfg.Env))
	for i, e := range cfg.Environ() {
		env[envPrefix+strconv.Itoa(i)] = e
	}
	return env
}

// attachArgs returns the command line of another guest, beside the first one.
func attachArgs() []string {
	return []string{guestProgram, "guest", "--root", guestRoot, "--attach", "-", "--linger"}
}
