package acp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

const (
	// startTime is far above what agents need on a busy machine: those that run on Node start
	// for seconds.
	startTime   = 5 * time.Minute
	silenceTime = 15 * time.Minute
	cancelTime  = 20 * time.Second
	// cancelAgain is how often an interrupt is repeated: an agent that reads messages
	// concurrently may lose one that closely follows its prompt.
	cancelAgain = time.Second
)

// conversation is a session of an agent. It has one process at a time, which stays between
// prompts and is restarted if it has ended.
type conversation struct {
	cfg       Config
	translate *translator
	updates   updates

	starting sync.Mutex // held while a process is started
	life     agent.Life
	sending  sync.WaitGroup // answers and interrupts
	stopping sync.WaitGroup // interrupts only; they must be sent before the next prompt

	permissions agent.Permissions[*question]
	asked       atomic.Int64 // counts questions, for their ids

	mu       sync.Mutex
	peer     *peer
	over     bool // no process may be started any more
	loading  bool // the agent repeats the old conversation
	repeated int  // number of repeated updates
	offered  bool // the agent has reported its commands
	progress chan struct{}
	query    *query
	stopped  []*question                     // rejected by an interrupt that must be sent before the answer
	always   map[runnerscripts.ToolKind]bool // allowed for the session; see Config.KeepsAlways
	mode     string                          // the user's choice; empty means the agent's default
	model    string
}

// query is a running prompt.
type query struct {
	cancelled bool          // it was interrupted
	stop      chan struct{} // closed when it is interrupted
}

// Start starts an agent and its session, which continues if it has a history. ctx covers the
// life of the conversation.
func Start(ctx context.Context, cfg Config) (agent.Conversation, error) {
	cfg.StartTime = cmp.Or(cfg.StartTime, startTime)
	cfg.Silence = cmp.Or(cfg.Silence, silenceTime)
	cfg.CancelTime = cmp.Or(cfg.CancelTime, cancelTime)
	cfg.Workspace = cmp.Or(cfg.Workspace, cfg.Query.Paths.Workspace)
	c := &conversation{
		cfg:         cfg,
		translate:   newTranslator(cfg.Out, cfg.WholeThoughts),
		progress:    make(chan struct{}, 1),
		permissions: agent.Permissions[*question]{Out: cfg.Out},
		always:      map[runnerscripts.ToolKind]bool{},
		mode:        cfg.Query.Agent.PermissionMode,
		model:       cfg.Query.Agent.Model,
	}
	c.updates.emit = c.said
	p, resumed, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	c.life.Watch(ctx, c.kill)
	c.mu.Lock()
	model, mode := c.model, c.mode
	c.mu.Unlock()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
		Agent: cfg.Query.Agent.Name, AgentVersion: p.version,
		Model: cmp.Or(model, p.options.model()), Mode: cmp.Or(mode, p.options.mode()), Models: p.options.modelList(), Resumed: resumed,
	})
	c.updates.release()
	return c, nil
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string, attachments ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	q := &query{stop: make(chan struct{})}
	c.mu.Lock()
	c.query = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.query = nil
		c.mu.Unlock()
	}()
	// An interrupt reaches the query from here on, also while this takes time.
	p, err := c.running(ctx)
	if err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	blocks, err := c.blocks(p, text, attachments)
	if err != nil {
		return runnerscripts.QueryCompleted{}, err
	}
	c.translate.prompt(text)
	reply, err := c.ask(ctx, p, q, blocks)
	c.mu.Lock()
	c.query = nil // no more permission requests
	c.mu.Unlock()
	c.withdrawAll()
	cancelled := err == nil && reply.StopReason == acpsdk.StopReasonCancelled
	if (cancelled || err != nil) && c.cfg.Forgets {
		c.translate.takeBack()
	}
	if c.cfg.Ended != nil {
		c.cfg.Ended()
	}
	if err == nil && c.cfg.Took != nil && !c.cfg.Took() && c.translate.takeBackPrompt() {
		why := "a hook has stopped it"
		if reply.StopReason == acpsdk.StopReasonMaxTokens {
			why = "the conversation would be longer than the model's context"
		}
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("%s has not taken the prompt: %s", c.cfg.Program, why),
		})
	}
	if err == nil && !cancelled && c.cfg.Answered != nil && !c.cfg.Answered() && c.translate.takeBack() {
		err = agent.APIFailure(0, fmt.Sprintf("%s has not kept the answer: it takes the answer for cut off, empty or repeated", c.cfg.Program),
			"", "send the prompt again")
	}
	c.translate.endCalls()
	if c.cfg.Spoiled != nil && c.cfg.Spoiled() {
		p.Kill()
	}
	done := runnerscripts.QueryCompleted{
		StopReason: runnerscripts.StopReason(reply.StopReason), Usage: c.usage(reply),
	}
	if done.StopReason == runnerscripts.StopEndTurn && c.isInterrupted(q) { // some agents call an interrupt the end of the turn
		done.StopReason = runnerscripts.StopCancelled
	}
	if err == nil && !knownStop(done.StopReason) {
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("%s stopped for a reason that is not known, %.100q", c.cfg.Program, done.StopReason),
		})
		done.StopReason = runnerscripts.StopEndTurn
	}
	return done, err
}

func knownStop(r runnerscripts.StopReason) bool {
	switch r {
	case runnerscripts.StopEndTurn, runnerscripts.StopMaxTokens, runnerscripts.StopMaxRequests, runnerscripts.StopRefusal, runnerscripts.StopCancelled:
		return true
	}
	return false
}

// ask sends a prompt and waits until it ends for any reason.
func (c *conversation) ask(ctx context.Context, p *peer, q *query, prompt []acpsdk.ContentBlock) (acpsdk.PromptResponse, error) {
	type outcome struct {
		reply acpsdk.PromptResponse
		err   error
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan outcome, 1)
	p.heard.Store(time.Now().UnixNano())
	prompted := make(chan struct{})
	go func() {
		c.stopping.Wait() // an interrupt of the last query must not stop this one
		var o outcome
		o.err = p.Call(asking, jsonrpc.Request{
			Method: acpsdk.AgentMethodSessionPrompt,
			Params: acpsdk.PromptRequest{SessionId: p.session, Prompt: prompt},
			Result: &o.reply,
			Sent:   func() { close(prompted) },
		})
		result <- o
	}()
	watch := time.NewTicker(max(c.cfg.Silence/10, time.Millisecond))
	defer watch.Stop()
	sent, stop := (<-chan struct{})(prompted), q.stop
	var late, again <-chan time.Time
	for {
		select {
		case o := <-result:
			return c.outcome(ctx, p, q, o.reply, o.err)
		case <-sent:
			sent = nil
		case <-stop:
			stop = nil
			timer := time.NewTimer(c.cfg.CancelTime)
			defer timer.Stop()
			late = timer.C
			repeat := time.NewTicker(cancelAgain)
			defer repeat.Stop()
			again = repeat.C
		case <-again:
		case <-late:
			// The agent ignores the interrupt. The next prompt resumes the conversation.
			p.Kill()
			<-result
			return acpsdk.PromptResponse{StopReason: acpsdk.StopReasonCancelled}, nil
		case <-watch.C:
			if c.waits() {
				p.heard.Store(time.Now().UnixNano()) // restart the silence timer
				continue
			}
			if p.silence() > c.cfg.Silence {
				p.Kill()
				<-result
				return acpsdk.PromptResponse{}, agent.Failed(
					"check that the model's API answers, and send the prompt again, which resumes the conversation: "+
						"%s said nothing for %v", c.cfg.Program, c.cfg.Silence)
			}
		case <-ctx.Done():
			p.Kill()
			<-result
			return acpsdk.PromptResponse{}, context.Cause(ctx)
		}
		if sent == nil && stop == nil { // an interrupt must not overtake the prompt
			c.sendInterrupt(ctx, p)
		}
	}
}

// sendInterrupt sends in the background: the program may not read its input.
func (c *conversation) sendInterrupt(ctx context.Context, p *peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.stopping.Add(1)
	c.sending.Go(func() {
		defer c.stopping.Done()
		_ = p.Notify(acpsdk.AgentMethodSessionCancel, acpsdk.CancelNotification{SessionId: p.session}) // an ended program needs no interrupt
		c.withdrawAll()                                                                                // after the interrupt: otherwise the agent would continue with the answer
	})
}

// outcome returns how a query ended.
func (c *conversation) outcome(ctx context.Context, p *peer, q *query, reply acpsdk.PromptResponse, err error) (acpsdk.PromptResponse, error) {
	if err == nil {
		return reply, nil
	}
	if ctx.Err() != nil {
		p.Kill()
		return reply, context.Cause(ctx)
	}
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if c.isInterrupted(q) { // some agents report an interrupt as an error
			return acpsdk.PromptResponse{StopReason: acpsdk.StopReasonCancelled}, nil
		}
		return reply, c.failure(agent.FailedQuery, "%s ended the query with an error: %s", rpc)
	}
	if errors.Is(err, jsonrpc.ErrEnded) {
		return reply, p.crash(c.cfg.Program)
	}
	return reply, err
}

func (c *conversation) isInterrupted(q *query) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return q.cancelled
}

// failure converts an error reply of the agent. other converts errors that report neither a
// failure of the model's API nor a missing login. format takes the agent's name and its
// message.
func (c *conversation) failure(other func(string, ...any) error, format string, err *jsonrpc.Error) error {
	if c.cfg.Failure != nil {
		if f := c.cfg.Failure(err); f != nil {
			return f
		}
	}
	if err.Code == authRequired {
		return &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAPI, HTTPStatus: 401,
			Message: fmt.Sprintf("%s is not logged in: %s; give it the key of its model's API in agent.env, or log it in in the sandbox",
				c.cfg.Program, words(err)),
		}
	}
	return other(format, c.cfg.Program, words(err))
}

// words returns the message of an error reply.
func words(err *jsonrpc.Error) string {
	if len(err.Data) == 0 || string(err.Data) == "null" {
		return err.Message
	}
	return fmt.Sprintf("%s: %s", err.Message, err.Data)
}

// waits reports whether the query waits for anything but the model.
func (c *conversation) waits() bool {
	return len(c.permissions.Pending()) > 0 || c.translate.busy()
}

// usage returns the usage of a query.
func (c *conversation) usage(reply acpsdk.PromptResponse) runnerscripts.Usage {
	var u runnerscripts.Usage
	if r := reply.Usage; r != nil {
		u = runnerscripts.Usage{
			InputTokens:      int64(r.InputTokens),
			OutputTokens:     int64(r.OutputTokens),
			CacheReadTokens:  number(r.CachedReadTokens),
			CacheWriteTokens: number(r.CachedWriteTokens),
		}
	}
	if c.cfg.Usage != nil {
		u = c.cfg.Usage(reply)
	}
	u.CostUSD = c.translate.costOfQuery()
	return u
}

func number(n *int) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// Interrupt stops the running query. If the prompt is not sent yet, the interrupt follows it.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt(c.query)
	return nil
}

// interrupt stops a query if it is still running. The caller holds c.mu.
func (c *conversation) interrupt(q *query) {
	if q == nil || q != c.query || q.cancelled {
		return
	}
	q.cancelled = true
	close(q.stop)
}

// preventStarts prevents further starts and returns the last process; busy says that a prompt runs.
func (c *conversation) preventStarts() (p *peer, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.peer, c.query != nil
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
			p.Kill() // at the end of its input it might finish the turn first
		} else {
			p.Close()
		}
		c.withdrawAll()
		c.sending.Wait()
	})
	return nil
}
