package claude

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// conversation is a session of Claude Code. It has one process at a time, which stays between
// prompts and is restarted after a crash.
type conversation struct {
	session runnerscripts.Session
	profile runnerscripts.Profile
	guard   agent.Guard
	raw     bool
	out     agent.Sink
	// patience limits the start of the program.
	patience time.Duration

	starting sync.Mutex // held while a process is started
	life     agent.Life

	permissions agent.Permissions[question]

	// Used by the reader's goroutine, or while there is none.
	translate   *translator
	meter       meter
	extras      extras
	apiError    string // the program's message about a refusal by the model's API
	initialized bool
	resumed     bool

	mu      sync.Mutex
	process *child.Process
	over    bool                             // no process may be started any more
	replies map[string]func(controlResponse) // by request ID; called on the reader's goroutine
	query   *query
	unasked unasked
	turns   int // number of results
	// schema is that of the query, and bound that of the process; empty for none.
	schema, bound json.RawMessage

	model     string // empty: the program's default
	mode      string
	hasStates bool // the program reports its states
	state     string
	// costBefore is the cost of the session before the last query in US dollars, if the profile
	// has a budget.
	costBefore float64
}

// query is a running prompt.
type query struct {
	uuid       string // of the user message
	waits      bool   // for its process: what another one does before its end is not the query's work
	started    bool   // the program works on it, so an interrupt reaches it
	interrupt  bool   // an interrupt came before it started
	cancelled  bool   // it was interrupted
	answered   bool   // the program has reported the message as done
	finished   bool
	overBudget bool        // it was stopped because of its cost
	refused    int         // the HTTP status that stopped it; zero for none
	result     *resultLine // result of the last turn
	usage      runnerscripts.Usage
	done       chan struct{}
}

// unasked is the program's work between queries: the end of a background command of a query
// triggers a new turn.
type unasked struct {
	usage      runnerscripts.Usage // reported with the next query
	overBudget bool                // it was stopped: the budget of the last query still applies
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	q := &query{uuid: agent.NewUUID(), waits: true, done: make(chan struct{})}
	c.mu.Lock()
	c.query = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.query = nil
		c.mu.Unlock()
	}()
	// From here on an interrupt reaches the query, even while this call takes time.
	p, err := c.running(ctx)
	c.mu.Lock()
	q.waits = false
	q.usage, c.unasked = c.unasked.usage, unasked{}
	c.mu.Unlock()
	if err != nil {
		return c.completed(q), err
	}
	if err := c.openBudget(ctx, p); err != nil {
		return c.completed(q), err
	}
	blocks := userContent(text, attachments)
	newTranslator(c.out, c.session.Paths).userText(time.Time{}, runnerscripts.MainConversation, q.uuid, blocks)
	message := userMessage{Role: "user", Content: text}
	if len(attachments) > 0 {
		message.Content = blocks
	}
	// A write error means that the program has ended; p.Done() reports that better.
	_ = p.Send(userLine{Type: "user", Message: message, UUID: q.uuid})
	select {
	case <-q.done:
	case <-p.Done():
		c.permissions.WithdrawAll()
	case <-ctx.Done():
		p.Kill()
		c.permissions.WithdrawAll()
		return c.completed(q), context.Cause(ctx)
	}
	c.mu.Lock()
	finished, cancelled, spent, refused, result := q.finished, q.cancelled, q.overBudget, q.refused, q.result
	c.mu.Unlock()
	done := c.completed(q)
	switch {
	case !finished:
		return done, &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailAgent,
			Message: "send the prompt again, which resumes the conversation: Claude Code crashed: " + p.Crash(),
		}
	case refused != 0 && !cancelled:
		err = agent.APIFailure(refused, "it refuses the key", keyPlace, "")
	case result != nil:
		done.ResultData = result.StructuredOutput
		done.StopReason, err = outcome(*result, cancelled || spent)
		if spent && !cancelled && done.StopReason == runnerscripts.StopCancelled {
			done.StopReason = runnerscripts.StopMaxRequests
		}
	case cancelled:
		done.StopReason = runnerscripts.StopCancelled
	default:
		done.StopReason = runnerscripts.StopEndTurn
	}
	return done, err
}

// completed returns the result of a query without its outcome.
func (c *conversation) completed(q *query) runnerscripts.QueryCompleted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return runnerscripts.QueryCompleted{Usage: q.usage}
}

// running returns the process. It restarts one that has ended, or that is bound to another schema than the query.
func (c *conversation) running(ctx context.Context) (*child.Process, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	p, over, other := c.process, c.over, !bytes.Equal(c.schema, c.bound)
	c.mu.Unlock()
	if over {
		return nil, agent.Closed()
	}
	if other {
		p.Close()
	}
	select {
	case <-p.Done():
		return c.start(ctx)
	default:
		return p, nil
	}
}

// BindOutput binds the output of later prompts to a schema of an object, which becomes the input of a tool. The program
// takes a schema only at its start, so another one costs a restart.
func (c *conversation) BindOutput(schema json.RawMessage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schema = toolSchema(schema)
	return len(c.schema) > 0
}

// toolSchema returns a schema if the program takes it, else nil.
func toolSchema(schema json.RawMessage) json.RawMessage {
	var is struct {
		Type    string `json:"type"`
		Dialect string `json:"$schema"`
	}
	// The program ignores a schema that names another dialect than draft 7.
	if json.Unmarshal(schema, &is) != nil || is.Type != "object" || is.Dialect != "" && !strings.Contains(is.Dialect, "draft-07") {
		return nil
	}
	return schema
}

// start starts the program and waits until it can take a prompt.
func (c *conversation) start(ctx context.Context) (*child.Process, error) {
	c.mu.Lock()
	model, mode, schema := c.model, c.mode, c.schema
	c.bound = schema
	c.mu.Unlock()
	cmd, err := launch(c.session, c.profile, model, mode)
	if err != nil {
		return nil, err
	}
	if err := makeFolders(c.session); err != nil {
		return nil, err
	}
	c.meter, c.resumed = meter{}, cmd.resumes
	c.extras = extras{}
	p, err := c.startProcess(cmd)
	if err != nil {
		return nil, err
	}
	init := map[string]any{"subtype": "initialize", "forwardSubagentText": true}
	if s := c.session.Agent.SystemPrompt; s != "" {
		init["appendSystemPrompt"] = s
	}
	if len(schema) > 0 {
		init["jsonSchema"] = schema
	}
	if cmd.resumes {
		// Otherwise the conversation keeps its first system prompt.
		init["systemPromptSnapshot"] = false
	}
	late := startFailure(fmt.Errorf("it did not answer within %v", c.patience))
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, late)
	defer cancel()
	reply, err := c.request(ctx, p, init)
	if err != nil {
		p.Kill()
		return nil, err
	}
	var can initialized
	_ = json.Unmarshal(reply, &can) // an unreadable reply offers nothing
	if err := c.accepted(ctx, p, can); err != nil {
		p.Kill()
		return nil, err
	}
	c.offerCommands(can)
	return p, nil
}

// startProcess starts a process for the conversation, unless that is closed.
func (c *conversation) startProcess(cmd command) (*child.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, agent.Closed()
	}
	p, err := child.Start(cmd.Command, c.handle)
	if err != nil {
		return nil, startFailure(err)
	}
	c.process, c.hasStates, c.state = p, false, ""
	return p, nil
}

func startFailure(err error) error {
	return &runnerscripts.ScriptFailure{
		Code:    runnerscripts.FailAgent,
		Message: fmt.Sprintf("check that the program in agent.command is Claude Code for this platform: %v", err),
	}
}

// offerCommands reports the slash commands in ACP's form.
func (c *conversation) offerCommands(r initialized) {
	if len(r.Commands) == 0 {
		return
	}
	type input struct {
		Hint string `json:"hint"`
	}
	type availableCommand struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Input       *input `json:"input,omitempty"`
	}
	list := make([]availableCommand, 0, len(r.Commands))
	for _, cmd := range r.Commands {
		a := availableCommand{Name: cmd.Name, Description: cmd.Description}
		if cmd.ArgumentHint != "" {
			a.Input = &input{Hint: cmd.ArgumentHint}
		}
		list = append(list, a)
	}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeCommands, map[string]any{"availableCommands": list})
}

// Interrupt stops the running query. If the program does not work on the prompt yet, the
// interrupt is sent when it does.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	q, p := c.query, c.process
	if q == nil || q.finished {
		c.mu.Unlock()
		return nil
	}
	q.cancelled = true
	if !q.started {
		q.interrupt = true
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	interrupt(p)
	return nil
}

// SetMode changes the permission mode.
func (c *conversation) SetMode(ctx context.Context, mode string) error {
	p, err := c.running(ctx)
	if err != nil {
		return err
	}
	if _, err := c.request(ctx, p, map[string]any{"subtype": "set_permission_mode", "mode": mode}); err != nil {
		return err
	}
	c.modeIs(mode)
	return nil
}

// modeIs stores the current mode, and reports a change.
func (c *conversation) modeIs(mode string) {
	c.mu.Lock()
	changed := mode != "" && mode != c.mode
	if changed {
		c.mode = mode
	}
	c.mu.Unlock()
	if changed {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
	}
}

// SetModel changes the model.
func (c *conversation) SetModel(ctx context.Context, model string) error {
	p, err := c.running(ctx)
	if err != nil {
		return err
	}
	if _, err := c.request(ctx, p, map[string]any{"subtype": "set_model", "model": model}); err != nil {
		return err
	}
	c.mu.Lock()
	c.model = model
	c.mu.Unlock()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeOptionsChanged, runnerscripts.OptionsChanged{Model: model})
	return nil
}

// preventStarts prevents further starts and returns the last process; busy says that a prompt runs.
func (c *conversation) preventStarts() (p *child.Process, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.process, c.query != nil
}

// kill kills the program.
func (c *conversation) kill() {
	p, _ := c.preventStarts()
	p.Kill()
}

// Close ends the program gracefully.
func (c *conversation) Close() error {
	c.life.Close(func() {
		p, busy := c.preventStarts()
		if busy {
			// At the end of its input it would finish the turn first.
			p.Signal(syscall.SIGTERM)
		}
		p.Close()
		c.permissions.WithdrawAll()
	})
	return nil
}
