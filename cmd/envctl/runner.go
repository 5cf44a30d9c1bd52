package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/internal/servertoken"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// coordinatorVariable names the variable with the address of the coordinator.
const coordinatorVariable = "AGENT_ORCHESTRATOR_API_URL"

// sessionKey is the key of a session's metadata with the ID of the session at the coordinator.
const sessionKey = "coordinator_session"

// runnerFlags are the flags of runner.
type runnerFlags struct {
	target
	makeFlags
	workspaceFlags
	agentFlags
	budgetFlags
	coordinator, permission string
	executor                environment.ExecutorInfo // of the agent; the zero value for another agent
	tags                    []string
	requireTags             bool
	maxRuns                 int
	idle, drain             time.Duration
}

func (a *app) newRunnerCmd() *cobra.Command {
	f := &runnerFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "runner [flags]",
		Short: "Take runs from a coordinator, and run them on this machine",
		Long: `Register at a coordinator, take the runs whose demands this runner meets, and run each in a
session of its own, in a sandbox of this machine, until it is interrupted. An 'envctl serve' has
a coordinator at URL/coordinator; that of claude-agent-orchestrator works, too.

A run may demand the name of this host, the profile, the type of the executor, which is the
agent, and tags. The profile is the name of --profile, which may be one of 'envctl executors', or
of the agent; one runner of a host and a folder has it, and another one waits. The coordinator
gets the messages, the tool calls and the result of each run. A run that resumes a session goes on
with its conversation and its files.

While the coordinator is away runs go on, and what it has to know waits. When the runner is
interrupted it takes no more runs, and lets those that it has end for the time of --drain. A
second interrupt ends them at once.

The token of the coordinator is in AGENTENV_TOKEN; that of a server of this user on this machine
is found by itself. 'coordinator' of --config names another place, or OAuth2 client credentials.
An executor, which is the agent 'command', gets the address of the coordinator without a key.`,
		Example: `  envctl runner --agent claude --profile reviewer --sandbox docker
  envctl runner --coordinator https://agents.example.com:8377/coordinator --config agent.yaml --tags gpu,big
  curl -d '{"type": "start_session", "prompt": "Say hello"}' -H 'Content-Type: application/json' \
    -H "Authorization: Bearer $AGENTENV_TOKEN" http://127.0.0.1:8377/coordinator/runs`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.target.flags(cmd)
	f.envFlag(cmd)
	f.workspaceFlags.flags(cmd)
	f.makeFlags.flags(cmd)
	f.agentFlags.flags(cmd)
	f.budgetFlags.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.coordinator, "coordinator", "", "address of the coordinator (default URL"+coordapi.Prefix+" of --server URL, that of --config, $"+coordinatorVariable+", or http://127.0.0.1:8377"+coordapi.Prefix+")")
	fl.StringSliceVar(&f.tags, "tags", nil, "tags that runs may demand, as in gpu,big")
	fl.BoolVar(&f.requireTags, "require-matching-tags", false, "take only runs that demand one of the tags")
	fl.IntVar(&f.maxRuns, "max-runs", 4, "most runs at a time")
	fl.StringVarP(&f.permission, "permission", "p", permissionDeny, "what to answer when the agent asks: allow or deny")
	fl.DurationVar(&f.idle, "idle", 30*time.Minute, "close a session that had no run for so long, and end its sandbox if that is not kept; 0 for never")
	fl.DurationVar(&f.drain, "drain", 30*time.Second, "how long runs may go on when the runner is interrupted")
	_ = cmd.RegisterFlagCompletionFunc("permission", cobra.FixedCompletions([]string{permissionAllow, permissionDeny}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *runnerFlags) run(ctx context.Context) (err error) {
	cfg, err := f.configure(ctx)
	if err != nil {
		return err
	}
	registration, err := f.registration(cfg)
	if err != nil {
		return err
	}
	client, err := client(ctx, cfg.Coordinator)
	if err != nil {
		return err
	}
	url := cfg.Coordinator.URL
	if !reports(cfg) {
		cfg.Coordinator = environment.Coordinator{}
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.New(&hclog.LoggerOptions{Name: "agentenv", Level: hclog.Warn, Output: f.app.err})
	}
	st, err := sessionstore.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	reopened := session.Config{Environment: environment.Config{OnPermission: cfg.OnPermission, Logger: cfg.Logger}}
	reopened.Environment.Agent.Env = cfg.Agent.Env // which no session stores
	host, err := session.NewHost(session.HostConfig{Store: st, Session: reopened, Idle: f.idle})
	if err != nil {
		return err
	}
	f.app.status.Off()
	err = runner.Run(ctx, runner.Config{
		URL: url, Client: client, Registration: registration, Reports: reports(cfg), Structured: structured(cfg), MaxRuns: f.maxRuns, Drain: f.drain, Hurry: f.app.forceExit, Logger: log,
		Open: func(ctx context.Context, r coordapi.Run) (*session.AgentSession, func(), error) {
			return open(ctx, host, cfg, r)
		},
		Registered: func(id string) error {
			f.app.dim("registered at %s; Ctrl-C ends it", url)
			_, err := fmt.Fprintln(f.app.out, id)
			return err
		},
		Say: f.app.dim,
	})
	ending, end := f.app.unhurried(ctx)
	defer end()
	return errors.Join(err, host.Shutdown(ending))
}

// dim prints a remark to standard error.
func (a *app) dim(format string, args ...any) {
	_ = a.err.Println(term.Dim(fmt.Sprintf(format, args...)))
}

// configure returns the configuration of the sessions.
func (f *runnerFlags) configure(ctx context.Context) (environment.Config, error) {
	cfg, err := f.loadNew(ctx, &f.makeFlags)
	if err != nil {
		return cfg, err
	}
	if err := f.chooseExecutor(); err != nil {
		return cfg, err
	}
	if err := errors.Join(f.agentFlags.apply(ctx, f.config, &cfg), f.budgetFlags.apply(&cfg)); err != nil {
		return cfg, err
	}
	if !cfg.Delegation.IsZero() {
		return cfg, usagef("--delegate, and delegation in the configuration: an agent of a runner starts no others; leave it out, and ask the coordinator for runs")
	}
	switch f.permission {
	case permissionAllow:
		cfg.OnPermission = environment.AllowAll
	case permissionDeny:
		cfg.OnPermission = environment.RejectAll
	default:
		return cfg, usagef("--permission: there is no %q here; choose allow or deny", f.permission)
	}
	given, err := f.sources()
	if err != nil {
		return cfg, err
	}
	cfg.Workspace = append(cfg.Workspace, given...)
	if err := absolute(cfg.Workspace); err != nil {
		return cfg, err
	}
	switch {
	case f.maxRuns < 1:
		return cfg, usagef("--max-runs: %d is too few; give at least 1", f.maxRuns)
	case f.idle < 0 || f.drain < 0:
		return cfg, usagef("--idle and --drain: a negative time makes no sense; give 0 or more")
	}
	if err := f.coordinates(&cfg); err != nil {
		return cfg, err
	}
	return cfg, (session.Config{Environment: cfg}).Check(ctx)
}

// chooseExecutor makes the executor that --profile names the agent, if there is one and no other agent is chosen. The name stays that
// of the profile.
func (f *runnerFlags) chooseExecutor() error {
	name := f.profile
	if strings.HasPrefix(f.agent, environment.ExecutorPrefix) {
		name = strings.TrimPrefix(f.agent, environment.ExecutorPrefix)
	} else if f.agent != "" || name == "" {
		return nil
	}
	list, err := environment.Executors(f.config)
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name == name && e.AgentsDir != "" {
			return usagef("executor %q: agents_dir: a runner registers no agents of its own; leave it out, and give them to 'envctl serve --agents'", name)
		}
		if e.Name == name {
			f.agent, f.executor, f.profile = environment.ExecutorPrefix+name, e, ""
		}
	}
	return nil
}

// registration returns what the runner says of itself.
func (f *runnerFlags) registration(cfg environment.Config) (r coordapi.Registration, err error) {
	r = coordapi.Registration{
		Hostname: cfg.Coordinator.Hostname, ExecutorProfile: cfg.Coordinator.Profile, Executor: coordapi.Executor{Type: firstOf(f.executor.Type, cfg.Agent.Name)}, Tags: f.tags, RequireMatchingTags: f.requireTags,
	}
	if f.folder != "" {
		r.ProjectDir, err = filepath.Abs(f.folder)
	}
	if slices.Contains(f.tags, "") {
		return r, usagef("--tags: a tag is empty; give tags such as gpu,big")
	}
	if f.requireTags && len(f.tags) == 0 {
		return r, usagef("--require-matching-tags without --tags takes no run; give --tags")
	}
	return r, err
}

// client returns a client that authorizes its requests to the coordinator.
func client(ctx context.Context, c environment.Coordinator) (*http.Client, error) {
	transport, err := c.Transport(ctx, http.DefaultTransport)
	if err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// coordinates sets where the coordinator is, and where its key is if the configuration does not say so.
func (f *runnerFlags) coordinates(cfg *environment.Config) (err error) {
	if f.coordinator != "" && f.app.serverFlag != "" {
		return usagef("--coordinator and --server: --server URL means the coordinator at URL%s; give one of them", coordapi.Prefix)
	}
	c, server := &cfg.Coordinator, ""
	if f.app.server != "" {
		server = strings.TrimSuffix(f.app.server, "/") + coordapi.Prefix
	}
	if f.app.serverFlag != "" {
		c.URL = server
	}
	c.URL = cmp.Or(f.coordinator, c.URL, os.Getenv(coordinatorVariable), server, "http://127.0.0.1:8377"+coordapi.Prefix)
	c.Profile = cmp.Or(f.executor.Name, f.profileName(), c.Profile, cfg.Agent.Name)
	if c.Hostname == "" {
		if c.Hostname, err = os.Hostname(); err != nil {
			return fmt.Errorf("this machine has no name: %w; set coordinator.hostname", err)
		}
	}
	u, err := url.Parse(c.URL)
	if err == nil && c.Credential.IsZero() && c.OAuth2 == nil {
		switch token, err := servertoken.FromEnv(); {
		case err != nil:
			return &exitError{code: exitUsage, err: err}
		case token != "":
			c.Credential.Env = servertoken.Variable
		default:
			if c.Credential.File, err = servertoken.File(u.Scheme + "://" + u.Host); err != nil {
				return err
			}
		}
	}
	if err = c.Check(); err != nil {
		return usagef("%w; --coordinator takes a URL such as http://127.0.0.1:8377%s", err, coordapi.Prefix)
	}
	return nil
}

// profileName returns the name of the profile of --profile; empty if there is none.
func (f *runnerFlags) profileName() string {
	base := filepath.Base(f.profile)
	if f.profile == "" {
		return ""
	}
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// reports reports whether the agent is an executor that tells the coordinator itself what it does. It gets the address.
func reports(cfg environment.Config) bool { return cfg.Agent.Name == "command" }

// structured reports whether the agent is an executor whose prompt is a JSON object with the parameters.
func structured(cfg environment.Config) bool {
	var p executor.Profile
	return cfg.Agent.Name == "command" && json.Unmarshal(cfg.Agent.Config, &p) == nil && p.Structured()
}

// open opens the session of a run: that of its earlier runs or attempts, else a new one.
func open(ctx context.Context, host *session.Host, cfg environment.Config, r coordapi.Run) (*session.AgentSession, func(), error) {
	var id string
	for record, err := range host.List(ctx, store.Filter{Metadata: map[string]string{sessionKey: r.SessionID}}) {
		if errors.Is(err, store.ErrCorrupt) {
			continue // and may be another session
		}
		if err != nil {
			return nil, nil, err
		}
		id = record.ID
		break
	}
	if id == "" {
		if r.ExecutorSessionID != "" {
			return nil, nil, fmt.Errorf("session %s is not stored here: it was removed, or is of another user or machine", r.SessionID)
		}
		if r.Blueprint != nil && r.Blueprint.SystemPrompt != "" {
			cfg.Profile.SystemPrompt = strings.TrimSpace(cfg.Profile.SystemPrompt + "\n\n" + r.Blueprint.SystemPrompt)
		}
		if !cfg.Coordinator.IsZero() {
			cfg.Coordinator.SessionID = r.SessionID
		}
		s, err := host.Create(ctx, session.Config{Environment: cfg, Metadata: map[string]string{sessionKey: r.SessionID}})
		if err != nil {
			return nil, nil, err
		}
		id = s.ID()
	}
	return host.Use(ctx, id)
}
