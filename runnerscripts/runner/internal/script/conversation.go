package script

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// contextSize is the context size that the agent claims, in tokens.
const contextSize = 200_000

// conversation is a started agent. It has no process or goroutine: Prompt does all the work.
type conversation struct {
	cfg          Config
	scenario     runnerscripts.Scenario
	paths        primitives.Paths
	env          []string // of the commands it runs
	systemPrompt string
	maxTurns     int
	raw          bool // also emit the lines of the history as raw events
	out          agent.Sink
	hist         *history
	prompts      []string // only Prompt uses it
	used         runnerscripts.Usage

	mu      sync.Mutex
	model   string
	mode    string
	cancel  context.CancelCauseFunc // of the running query
	waiting map[string]*question
	always  map[string]runnerscripts.PermissionKind // by the tool's name
}

func newConversation(cfg Config, req runnerscripts.QueryRequest, sc runnerscripts.Scenario, p past, h *history, out agent.Sink) *conversation {
	env := append(os.Environ(), "HOME="+req.Paths.Home)
	for _, vars := range []map[string]string{req.Gateway.Variables(), req.Agent.Env} {
		for k, v := range vars {
			env = append(env, k+"="+v)
		}
	}
	mode := req.Agent.PermissionMode
	if mode == "" {
		mode = modeDefault
	}
	return &conversation{
		cfg: cfg, scenario: sc, paths: req.Paths, env: env,
		systemPrompt: req.Agent.SystemPrompt, maxTurns: req.Agent.MaxTurns, raw: req.Raw,
		out: out, hist: h, prompts: p.prompts, used: p.usage,
		model: req.Agent.Model, mode: mode,
		waiting: map[string]*question{}, always: map[string]runnerscripts.PermissionKind{},
	}
}

// Prompt plays the turn that answers the prompt.
func (c *conversation) Prompt(ctx context.Context, id, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	c.prompts = append(c.prompts, text)
	c.mu.Lock()
	c.cancel = cancel
	fill := c.placeholders(c.prompts, attachments)
	c.mu.Unlock()
	turns := turnsFor(c.scenario, c.prompts)
	t := &turn{c: c, query: id, name: "turn-" + strconv.Itoa(len(c.prompts)), fill: fill}
	stop, err := t.play(ctx, text, attachments, turns[len(turns)-1])
	c.mu.Lock()
	c.cancel = nil
	c.mu.Unlock()
	if _, crashed := errors.AsType[CrashError](err); crashed {
		return runnerscripts.QueryCompleted{}, err
	}
	c.used = c.used.Add(t.usage)
	done := runnerscripts.QueryCompleted{
		StopReason: stop, DurationMS: max(1, time.Since(start).Milliseconds()), Usage: t.usage,
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Cause(ctx))) {
		done.StopReason, err = runnerscripts.StopCancelled, nil
	}
	return done, t.end(done, err)
}

// Interrupt ends the running turn.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(errInterrupted)
	}
	return nil
}

// SetMode changes when the agent asks for permission.
func (c *conversation) SetMode(_ context.Context, mode string) error {
	if err := checkMode(mode); err != nil {
		return err
	}
	if mode == "" {
		mode = modeDefault
	}
	c.mu.Lock()
	c.mode = mode
	c.mu.Unlock()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
	return nil
}

// SetModel changes the value of {{model}}.
func (c *conversation) SetModel(_ context.Context, model string) error {
	c.mu.Lock()
	c.model = model
	options := runnerscripts.OptionsChanged{Model: model, Mode: c.mode}
	c.mu.Unlock()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeOptionsChanged, options)
	return nil
}

// Close closes the history.
func (c *conversation) Close() error { return c.hist.file.Close() }
