package modal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	sdk "github.com/modal-labs/modal-client/go"
)

// params says to the SDK what the configuration does.
func (c *client) params(ctx context.Context, cfg config) (*sdk.SandboxCreateParams, error) {
	cpu, cpuLimit := cfg.cpus()
	memory, memoryLimit := cfg.memory()
	p := &sdk.SandboxCreateParams{
		CPU: cpu, CPULimit: cpuLimit, MemoryMiB: memory, MemoryLimitMiB: memoryLimit,
		GPU: cfg.GPU, Cloud: cfg.Cloud, Regions: cfg.Regions, Name: cfg.Name,
		Timeout: cfg.timeout(), EncryptedPorts: cfg.Ports, BlockNetwork: cfg.Network == "none",
	}
	if !cfg.Keep {
		// Modal counts when no command runs. The guest, which is one, counts before.
		p.IdleTimeout = min(cfg.idle(), defaultIdle)
	}
	if len(cfg.AllowCIDRs)+len(cfg.AllowDomains) > 0 {
		// The kind that is not given is not open.
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

// awaitReady waits until the sandbox says that it is ready, if that was asked for.
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

// Where the guest lives in the sandbox.
const (
	guestDir      = "/agentenv"
	runnerDir     = guestDir + "/runner" // may be an image that is mounted
	guestProgram  = runnerDir + "/envrunner"
	guestRoot     = guestDir + "/sandbox"
	guestSettings = guestDir + "/settings.json"
)

// guestArgs is the command line of the first guest, which keeps the sandbox alive.
// If the image is a snapshot, it takes over the session folder in it.
func guestArgs(cfg config) []string {
	stay := cfg.idle()
	if cfg.Keep {
		stay = -1
	}
	args := []string{
		guestProgram, "guest", "--root", guestRoot, "--stay", stay.String(), "--leave-files", "--inherit-env", "--adopt", "-",
		"--env", "MODAL_TASK_ID", "--env", "MODAL_IMAGE_ID", // Modal's own, and different in copies
	}
	if cfg.Workspace != "" {
		args = append(args, "--workspace", cfg.Workspace)
	}
	if cfg.User != "" {
		args = append(args, "--user", cfg.User)
	}
	return append(args, "--env-from", envPrefix)
}

// envPrefix and a number are the names of the variables in which the guest gets those
// of Spec.Env: everybody in the sandbox sees its command line.
const envPrefix = "AGENTENV_VAR_"

// guestEnv puts what Spec.Env says into such variables.
func guestEnv(cfg config) map[string]string {
	env := make(map[string]string, len(cfg.Env))
	for i, e := range cfg.Environ() {
		env[envPrefix+strconv.Itoa(i)] = e
	}
	return env
}

// attachArgs is that of one more guest, beside the first one.
func attachArgs() []string {
	return []string{guestProgram, "guest", "--root", guestRoot, "--attach", "-", "--linger"}
}
