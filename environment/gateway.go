package environment

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/environment/internal/gate"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/egress"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Credential says where this machine keeps the key of a model API.
type Credential = gateway.Credential

type (
	// Coordinator says how executors in the sandbox reach an agent coordinator.
	Coordinator = gateway.Coordinator
	// OAuth2 says where the access tokens for a coordinator come from.
	OAuth2 = gateway.OAuth2
	// KeySource says where this machine keeps another key.
	KeySource = gateway.KeySource
	// Budget limits what an agent uses.
	Budget = gateway.Budget
	// Limits are the limits of a query or of a session.
	Limits = gateway.Limits
	// Price is the price of a million tokens of a model, in US dollars.
	Price = gateway.Price
	// Used is what queries have used.
	Used = gateway.Used
	// BudgetError says which limit ended a query.
	BudgetError = gateway.BudgetError
	// NoMatchError is a model call that is missing in the file of Config.Replay.
	NoMatchError = gateway.NoMatchError
	// ModelPolicy says which models agents may use, and how.
	ModelPolicy = gateway.ModelPolicy
)

// checkGateway returns an error for settings that no gateway can enforce.
func (c Config) checkGateway() error {
	if err := errors.Join(c.Budget.Check(), c.Models.Check(), c.Coordinator.Check()); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if c.Record != "" && c.Replay != "" {
		return fmt.Errorf("%w: record, replay: a session is recorded or replayed; leave one out", ErrConfig)
	}
	if err := c.checkHosts(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Credentials)) {
		if err := c.Credentials[name].Check(name); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	return c.checkDeliver()
}

// checkCounted returns an error for settings that count or record at the gateway, if the agent
// does not use it. A file may have them, and get the credentials from elsewhere.
func (c Config) checkCounted() error {
	switch uses := len(c.Credentials) > 0 || c.Agent.Name == ""; {
	case c.mustHold() && c.Replay == "" && !uses:
		return fmt.Errorf("%w: permissions: the agent %s asks nothing, so its calls are held at the gateway, which it does not use without credentials; give credentials, as {anthropic: {env: ANTHROPIC_API_KEY}}", ErrConfig, c.Agent.Name)
	case c.Record != "" && !uses:
		return fmt.Errorf("%w: record: calls are recorded at the gateway, which an agent without credentials does not use; give credentials, as {anthropic: {env: ANTHROPIC_API_KEY}}", ErrConfig)
	case (c.Budget.Metered() || c.Session.CountTo.Metered()) && c.Replay == "" && !uses:
		return fmt.Errorf("%w: budget: all but time is counted at the gateway, which an agent without credentials does not use; give credentials, as {anthropic: {env: ANTHROPIC_API_KEY}}", ErrConfig)
	}
	return nil
}

// checkHosts returns an error for rules that could not be enforced.
func (c Config) checkHosts() error {
	if c.Sandbox.AllowHosts == nil {
		return nil
	}
	if c.Sandbox.Network != "none" {
		return fmt.Errorf("%w: sandbox.allow_hosts: with a network of its own the sandbox reaches more than these; set network: none", ErrConfig)
	}
	return checkRules(c.Sandbox.AllowHosts)
}

func checkRules(hosts []string) error {
	if _, err := egress.ParseRules(hosts); err != nil {
		return fmt.Errorf("%w: sandbox.%w", ErrConfig, err)
	}
	return nil
}

// holds reports whether the gateway holds the agent's tool calls, because the agent has no way to ask.
func (c Config) holds() bool {
	return c.Agent.Name == commandAgent && c.hasPermissions() && !c.usesRPC()
}

// refuses reports whether the gateway refuses tool calls that rules deny. An agent over ACP asks about what it wants to,
// and may not say what it asks about.
func (c Config) refuses() bool {
	acp := c.Agent.Name == acpAgent || runnerscripts.IsRegistryAgent(c.Agent.Name)
	return acp && slices.ContainsFunc(c.allRules(), func(r namedRules) bool { return len(r.Deny) > 0 || r.Mode == permission.ModePlan })
}

// mustHold reports whether rules would decide about nothing without the gateway. PermissionLimits are no
// rules of this agent, and a procedural executor need not call a model.
func (c Config) mustHold() bool {
	return c.holds() && (!c.Permissions.IsZero() || !c.Profile.Permissions.IsZero()) && c.executor().Type != executor.Procedural
}

// gateConfig says what the gateway of a sandbox serves. An agent with its own keys does not use it.
func (c Config) gateConfig(from origin, meter *gateway.Meter) gate.Config {
	g := gate.Config{
		Models: c.modelPolicy(), Meter: meter, AllowHosts: c.Sandbox.AllowHosts, Coordinator: c.Coordinator, SessionID: c.SessionID,
		Deliver: c.Deliver, Before: from.gateway, Wait: from.kept, Logger: c.Logger,
	}
	if c.Agent.Name != "" {
		g.Credentials, g.Record, g.Replay = c.Credentials, c.Record, c.Replay
	}
	return g
}

// newMeter returns the meter of an environment whose session has used something before.
func (c Config) newMeter(used Used) *gateway.Meter {
	if c.Session.CountTo != nil {
		return c.Session.CountTo.NewChild(c.Budget, used)
	}
	return gateway.NewMeter(c.Budget, used)
}

// modelPolicy returns the configured policy. If the sandbox has its own network, it allows all
// tools of the model APIs by default: to forbid them would gain nothing.
func (c Config) modelPolicy() ModelPolicy {
	policy := c.Models
	if policy.ProviderTools == nil && c.Sandbox.Network != "none" {
		policy.ProviderTools = []string{"*"}
	}
	return policy
}

// SetAllowHosts replaces Sandbox.AllowHosts while the sandbox runs, also for the running agent
// and running commands. It closes connections to hosts that are no longer allowed. Other
// programs that are attached to the sandbox keep their rules; programs that attach later get the
// new ones. An invalid list is [ErrConfig] and changes nothing. If the sandbox was opened
// without a list, the error is errors.ErrUnsupported.
func (e *Environment) SetAllowHosts(hosts []string) error {
	if !e.gate.HasProxy() {
		return fmt.Errorf("allow_hosts: %w: the sandbox has no proxy; make it with network none and allow_hosts, which may be an empty list", errors.ErrUnsupported)
	}
	if err := checkRules(hosts); err != nil {
		return err
	}
	if err := e.gate.SetAllowHosts(hosts); err != nil {
		return err
	}
	e.mu.Lock()
	e.hosts = append([]string{}, hosts...)
	e.mu.Unlock()
	e.log.Info("allowed hosts changed", "hosts", hosts)
	if e.origin.log != nil && e.origin.unknown == nil {
		e.remember(e.origin.log.Change)
	}
	return nil
}

// GatewayEnv returns the variables that point programs to the proxy of Sandbox.AllowHosts and to
// the Coordinator, for primitives.Command.Env; nil if there is neither. The agent and commands of
// [Environment.Exec] have these variables.
func (e *Environment) GatewayEnv() []string {
	vars := e.gate.At.Variables()
	if len(vars) == 0 {
		return nil
	}
	return primitives.Spec{Env: vars}.Environ()
}

// NewMeter returns the meter of a session that is no environment's, for SessionState.CountTo.
func NewMeter(b Budget) *Meter { return gateway.NewMeter(b, Used{}) }
