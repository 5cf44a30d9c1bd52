package environment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/egress"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Credential says where this machine keeps the key of a model API.
type Credential = gateway.Credential

type (
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

// addressReuseTimeout is how long the address of a dead program may still be in use; openGate retries after
// each addressReusePause.
const (
	addressReuseTimeout = 2 * time.Second
	addressReusePause   = 50 * time.Millisecond
)

// gate is the environment's gateway to the models and to allowed hosts; its zero value is none.
type gate struct {
	refusals chan string // refusals of the proxy for the running query; nil for no proxy
	server   *gateway.Gateway
	at       *runnerscripts.Gateway
	secrets  secrets
	file     *os.File // of the recording; nil for none
	serving  sync.WaitGroup
}

// checkGateway returns an error for settings that no gateway can enforce.
func (c Config) checkGateway() error {
	if err := errors.Join(c.Budget.Check(), c.Models.Check()); err != nil {
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
	return nil
}

// checkCounted returns an error for settings that count or record at the gateway, if the agent
// does not use it. A file may have them, and get the credentials from elsewhere.
func (c Config) checkCounted() error {
	switch uses := len(c.Credentials) > 0 || c.Agent.Name == ""; {
	case c.Record != "" && !uses:
		return fmt.Errorf("%w: record: calls are recorded at the gateway, which an agent without credentials does not use; give credentials, as {anthropic: {env: ANTHROPIC_API_KEY}}", ErrConfig)
	case c.Budget.Metered() && c.Replay == "" && !uses:
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

// openGate serves the gateway in the sandbox if the agent has credentials or hosts are allowed.
// It reuses the address of the program that created the sandbox, because an agent that still
// runs uses that address.
func openGate(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, own owner, meter *gateway.Meter) (_ *gate, err error) {
	g := &gate{}
	hosts := cfg.Sandbox.AllowHosts
	if cfg.Agent.Name == "" {
		cfg.Credentials, cfg.Record, cfg.Replay = nil, "", ""
	}
	if len(cfg.Credentials) == 0 && cfg.Replay == "" && hosts == nil {
		return g, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	to := gateway.Config{Upstreams: map[string]gateway.Upstream{}, Models: cfg.modelPolicy(), Meter: meter, AllowHosts: hosts, Logger: cfg.Logger}
	if hosts != nil {
		g.refusals = make(chan string, maxRefusals)
		to.OnRefused = g.refused
	}
	if cfg.Replay != "" {
		cfg.Credentials = nil
	}
	if err := g.openFile(cfg, &to, p.Paths()); err != nil {
		return nil, err
	}
	for name, c := range cfg.Credentials {
		up, err := c.Upstream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		to.Upstreams[name] = up
		g.secrets.hide(up.Key)
	}
	address := "127.0.0.1:0"
	if last := own.gateway; last != nil {
		to.Token, address = last.Token, last.Address()
	}
	if g.server, err = gateway.New(to); err != nil { //nolint:contextcheck // it outlives ctx, until Close
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l, err := primitives.Listen(ctx, p, "tcp", address)
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < addressReuseTimeout && !patience.Wait(ctx.Done(), addressReusePause); {
		l, err = primitives.Listen(ctx, p, "tcp", address)
	}
	if errors.Is(err, syscall.EADDRINUSE) { // another program serves it
		l, err = primitives.Listen(ctx, p, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("open the gateway in the sandbox: %w", err)
	}
	g.serve(l, cfg)
	g.at.Wait = own.kept
	return g, nil
}

// openFile opens the file to record to or to replay.
func (g *gate) openFile(cfg Config, to *gateway.Config, paths primitives.Paths) (err error) {
	to.Places = map[string]string{paths.Workspace: "<sandbox:workspace>", paths.Home: "<sandbox:home>", paths.Session: "<sandbox:session>"}
	switch {
	case cfg.Record != "":
		if g.file, err = gateway.OpenRecord(cfg.Record); err != nil {
			return fmt.Errorf("%w: record: %w", ErrConfig, err)
		}
		to.Record = g.file
	case cfg.Replay != "":
		if g.file, err = input.Open(cfg.Replay); err != nil {
			return fmt.Errorf("%w: replay: %w", ErrConfig, err)
		}
		to.Replay = g.file
	}
	return nil
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

// serve serves the listener until close.
func (g *gate) serve(l net.Listener, cfg Config) {
	g.at = g.server.At(l.Addr())
	g.secrets.hide(g.at.Token)
	g.secrets.hide(g.at.ProxyCredential())
	g.serving.Go(func() {
		if err := g.server.Serve(l); err != nil && cfg.Logger != nil {
			cfg.Logger.Debug("the gateway has ended", "error", err) // it ends with the sandbox
		}
	})
}

// close revokes the token and returns when the server has ended.
func (g *gate) close() error {
	var err error
	if g.server != nil {
		err = g.server.Close()
		g.serving.Wait()
	}
	if g.file != nil {
		err = errors.Join(err, g.file.Close())
	}
	return err
}

// renew restarts the lifetime of the token.
func (g *gate) renew() {
	if g.server != nil {
		g.server.Renew()
	}
}

// maxRefusals is how many refusals wait for a query to report them. The log has all of them.
const maxRefusals = 16

// maxTold limits how many refusals a query reports.
const maxTold = 64

// refused queues a refusal for the running query, or drops it if the queue is full.
func (g *gate) refused(message string) {
	select {
	case g.refusals <- message:
	default:
	}
}

// refused reports that a process in the sandbox wanted a host that is not allowed. It reports
// each message once.
func (r *queryRun) refused(message string) {
	if r.refusals == nil {
		r.refusals = map[string]bool{}
	}
	if r.refusals[message] || len(r.refusals) == maxTold {
		return
	}
	r.refusals[message] = true
	r.warn(message)
}

// SetAllowHosts replaces Sandbox.AllowHosts while the sandbox runs, also for the running agent
// and running commands. It closes connections to hosts that are no longer allowed. Other
// programs that are attached to the sandbox keep their rules; programs that attach later get the
// new ones. An invalid list is [ErrConfig] and changes nothing. If the sandbox was opened
// without a list, the error is errors.ErrUnsupported.
func (e *Environment) SetAllowHosts(hosts []string) error {
	if e.gate.refusals == nil {
		return fmt.Errorf("allow_hosts: %w: the sandbox has no proxy; make it with network none and allow_hosts, which may be an empty list", errors.ErrUnsupported)
	}
	if err := checkRules(hosts); err != nil {
		return err
	}
	if err := e.gate.server.SetAllowHosts(hosts); err != nil {
		return err
	}
	e.mu.Lock()
	e.hosts = append([]string{}, hosts...)
	e.mu.Unlock()
	e.log.Info("allowed hosts changed", "hosts", hosts)
	if e.activity != nil && e.owner.unknown == nil {
		e.rememberOnHost(e.ownNote())
	}
	return nil
}

// ProxyEnv returns the variables that point programs to the proxy of Sandbox.AllowHosts, for
// primitives.Command.Env; nil if there is no proxy. The agent and commands of [Environment.Exec]
// have these variables.
func (e *Environment) ProxyEnv() []string {
	if e.gate.refusals == nil {
		return nil
	}
	return primitives.Spec{Env: e.gate.at.ProxyVariables()}.Environ()
}
