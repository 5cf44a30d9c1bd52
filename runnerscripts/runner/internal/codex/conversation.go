package codex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// conversation is a thread of Codex. It keeps one process between prompts and restarts it after a
// crash.
type conversation struct {
	session runnerscripts.Session
	profile runnerscripts.Profile
	tools   toolRules
	guard   agent.Guard
	raw     bool
	out     agent.Sink
	// patience limits the start of the program.
	patience time.Duration
	// ending limits endCommands.
	ending time.Duration

	starting sync.Mutex // held while a process is started
	life     agent.Life

	permissions agent.Permissions[question]

	// reading is held while handle handles a line, and by other users of the reader's state. Lock
	// it before mu.
	reading     sync.Mutex
	translate   *translator
	meter       meter
	queued      [][]byte // lines about unknown threads
	initialized bool
	broken      map[string]bool // MCP servers whose failed start was reported

	mu     sync.Mutex
	peer   *jsonrpc.Peer
	over   bool // no process may be started any more
	thread string
	query  *query
	// working maps the threads of running subagents to the IDs of their turns. An ID is empty until
	// the turn starts.
	working map[string]string
	model   string // empty: the program's own choice
	usual   string // the program's own choice
	mode    string
	planned bool            // the last turn made a plan
	schema  json.RawMessage // of the output of the next turn; empty for none
	// The mode and the model last sent to the program.
	toldMode, toldModel string
}

// query is a running prompt.
type query struct {
	turn      string // ID of its turn; empty before the start
	cancelled bool   // it was interrupted
	told      bool   // the interrupt was sent to the program
	end       *turn  // how its turn ended
	finished  bool
	abandoned bool // it ended before its subagents
	usage     runnerscripts.Usage
	done      chan struct{}
	quiet     chan struct{} // signals that its turn has ended and none of its commands runs
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	q := &query{done: make(chan struct{}), quiet: make(chan struct{}, 1)}
	c.mu.Lock()
	c.query = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.query = nil
		c.mu.Unlock()
	}()
	// Interrupt already reaches the query while running starts a process.
	p, err := c.running(ctx)
	if err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	err = p.Call(ctx, jsonrpc.Request{Method: "turn/start", Params: c.turnParams(inputs(expand(c.profile.Commands, text), attachments))})
	if _, refused := errors.AsType[*jsonrpc.Error](err); refused {
		return runnerscripts.QueryCompleted{}, agent.Invalid("check agent.model and the settings in agent.config: %v", err)
	}
	select {
	case <-q.done:
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		c.ended(p)
		return c.completed(q), context.Cause(ctx)
	}
	c.permissions.WithdrawAll()
	c.mu.Lock()
	end, finished, cancelled, abandoned := q.end, q.finished, q.cancelled, q.abandoned
	c.mu.Unlock()
	done := c.completed(q)
	if !finished {
		c.ended(p)
		return done, agent.Failed("send the prompt again, which resumes the conversation: Codex crashed: %s", p.Crash())
	}
	if end.Status == turnInterrupted {
		c.endCommands(ctx, p, q)
	}
	if cancelled && abandoned {
		c.interruptSubagents(p)
	}
	done.StopReason, err = outcome(*end, cancelled, abandoned)
	return done, err
}

// ended ends the pending permission requests and the unfinished work of a program that has ended.
func (c *conversation) ended(p *jsonrpc.Peer) {
	c.permissions.WithdrawAll()
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	last := c.peer == p
	c.mu.Unlock()
	if last { // otherwise start did so before it started the next process
		c.reading.Lock()
		defer c.reading.Unlock()
		c.translate.endAll()
	}
}

// endCommands ends the commands that an interrupt left running, and waits until the program has
// reported their ends and output. It reports commands as failed if the program does not report them
// in time.
func (c *conversation) endCommands(ctx context.Context, p *jsonrpc.Peer, q *query) {
	ctx, cancel := context.WithTimeout(ctx, c.ending)
	defer cancel()
	params := map[string]any{"threadId": c.threadID()}
	if err := p.Call(ctx, jsonrpc.Request{Method: "thread/backgroundTerminals/clean", Params: params}); err != nil {
		c.log("warn", "the commands of the interrupted query may still run: "+err.Error(), nil)
	} else {
		select {
		case <-q.quiet: // usually after the reply
		case <-p.Done():
		case <-ctx.Done():
		}
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	c.translate.endTurn(time.Time{}, runnerscripts.MainConversation)
}

// interruptTime limits endCommands, which normally takes milliseconds. It is shorter than the grace
// period of five seconds after which the environment kills the agent.
const interruptTime = 3 * time.Second

// turnParams returns the parameters of a turn with the current settings.
func (c *conversation) turnParams(prompt []any) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	params := map[string]any{
		"threadId": c.thread,
		"input":    prompt,
	}
	if m, err := findMode(c.mode); err == nil {
		// Send both only when they change: they stay in force for later turns, and sending them
		// costs time.
		if m.id != c.toldMode {
			params["approvalPolicy"], params["sandboxPolicy"] = m.approval, m.policy
			c.toldMode = m.id
		}
		// The collaboration mode overrides other settings, so send it only when it matters.
		if m.plans || c.planned {
			params["collaborationMode"] = m.collaboration(cmp.Or(c.model, c.usual))
		}
		c.planned = m.plans
	}
	if c.model != "" && c.model != c.toldModel {
		params["model"] = c.model
		c.toldModel = c.model
	}
	if len(c.schema) > 0 {
		params["outputSchema"] = c.schema // for this turn alone
	}
	return params
}

// BindOutput binds the output of later turns to a schema of OpenAI's strict mode, which is all that the program asks the
// API for. The output is the last message.
func (c *conversation) BindOutput(schema json.RawMessage) bool {
	if !strictSchema(schema) {
		schema = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schema = schema
	return len(schema) > 0
}

// inputs returns the input of a turn.
func inputs(text string, attachments []runnerscripts.Attachment) []any {
	list := []any{textInput(text)}
	for _, a := range attachments {
		if a.Feature() == runnerscripts.FeatureImages {
			list = append(list, map[string]any{"type": "image", "url": agent.DataURL(a)})
		} else {
			list = append(list, textInput(agent.TextFile(a)))
		}
	}
	return list
}

func textInput(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

// completed returns the result of a query without its outcome.
func (c *conversation) completed(q *query) runnerscripts.QueryCompleted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return runnerscripts.QueryCompleted{Usage: q.usage}
}

func (c *conversation) threadID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.thread
}

// running returns the process. It starts a new process if the last one has ended.
func (c *conversation) running(ctx context.Context) (*jsonrpc.Peer, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	p, over := c.peer, c.over
	c.mu.Unlock()
	if over {
		return nil, agent.Closed()
	}
	select {
	case <-p.Done():
		return c.start(ctx)
	default:
		return p, nil
	}
}

// start starts the program and opens the thread.
func (c *conversation) start(ctx context.Context) (*jsonrpc.Peer, error) {
	cmd, err := launch(c.session, c.profile)
	if err != nil {
		return nil, err
	}
	if err := makeFolders(c.session); err != nil {
		return nil, err
	}
	c.reading.Lock()
	c.meter, c.queued, c.broken = meter{}, nil, map[string]bool{}
	c.translate.endAll()
	c.reading.Unlock()
	p, err := c.startProcess(cmd)
	if err != nil {
		return nil, err
	}
	late := startFailure(fmt.Errorf("it did not answer within %v", c.patience))
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, late)
	defer cancel()
	if err := c.open(ctx, p); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// startProcess starts a process, unless the conversation is closed.
func (c *conversation) startProcess(cmd child.Command) (*jsonrpc.Peer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, agent.Closed()
	}
	p, err := jsonrpc.Start(cmd, "", c.handle)
	if err != nil {
		return nil, startFailure(err)
	}
	c.peer = p
	clear(c.working) // the subagents ended with the last process
	return p, nil
}

// Interrupt stops the running query. If its turn has not started, the interrupt stays pending until
// then.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	if c.query != nil {
		c.query.cancelled = true
		c.finishQueryLocked()
	}
	c.mu.Unlock()
	c.sendInterrupt()
	return nil
}

// interruptSubagents stops the subagents of an interrupted query.
func (c *conversation) interruptSubagents(p *jsonrpc.Peer) {
	c.mu.Lock()
	working := maps.Clone(c.working)
	clear(c.working)
	c.mu.Unlock()
	for thread, turn := range working {
		if turn != "" {
			_, _ = p.Send("turn/interrupt", map[string]any{"threadId": thread, "turnId": turn}, nil)
		}
	}
}

// sendInterrupt sends a pending interrupt if the turn has started. If the program refuses it
// because the turn cannot be interrupted yet, the interrupt stays pending until the next message of
// the turn.
func (c *conversation) sendInterrupt() {
	c.mu.Lock()
	q, p := c.query, c.peer
	if q == nil || !q.cancelled || q.told || q.turn == "" || q.end != nil {
		c.mu.Unlock()
		return
	}
	q.told = true
	params := map[string]any{"threadId": c.thread, "turnId": q.turn}
	c.mu.Unlock()
	_, _ = p.Send("turn/interrupt", params, func(m jsonrpc.Message) {
		if m.Error != nil {
			c.mu.Lock()
			q.told = false
			c.mu.Unlock()
		}
	})
}

// SetMode changes the permission mode from the next prompt on: Codex cannot change it during a
// turn.
func (c *conversation) SetMode(_ context.Context, mode string) error {
	if _, err := findMode(mode); err != nil {
		return err
	}
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return agent.Closed()
	}
	changed := c.mode != mode
	c.mode = mode
	c.mu.Unlock()
	if changed {
		c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeModeUpdate, runnerscripts.ModeUpdate{CurrentModeID: mode})
	}
	return nil
}

// SetModel changes the model, also of a running turn.
func (c *conversation) SetModel(ctx context.Context, model string) error {
	if model == "" {
		return agent.Invalid("name the model that shall be used")
	}
	p, err := c.running(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	thread, turn := c.thread, ""
	if c.query != nil && c.query.end == nil {
		turn = c.query.turn
	}
	c.mu.Unlock()
	if turn != "" {
		params := map[string]any{"threadId": thread, "turnId": turn, "model": model}
		if err := p.Call(ctx, jsonrpc.Request{Method: "turn/settings/update", Params: params}); err != nil {
			c.log("warn", "the new model is used from the next prompt on: "+err.Error(), nil)
		}
	}
	c.mu.Lock()
	c.model = model
	c.mu.Unlock()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeOptionsChanged, runnerscripts.OptionsChanged{Model: model})
	return nil
}

// preventStarts prevents further starts. It returns the last process, and whether a query is running.
func (c *conversation) preventStarts() (p *jsonrpc.Peer, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.peer, c.query != nil
}

// kill ends the program at once.
func (c *conversation) kill() {
	p, _ := c.preventStarts()
	p.Kill()
}

// Close ends the program gracefully.
func (c *conversation) Close() error {
	c.life.Close(func() {
		p, busy := c.preventStarts()
		if busy {
			// At EOF on its standard input, the program would finish the turn first.
			p.Signal(syscall.SIGTERM)
		}
		p.Close()
		c.permissions.WithdrawAll()
	})
	return nil
}
