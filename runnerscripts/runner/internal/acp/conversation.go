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
	// startTime is far above what a busy machine takes: agents that run on Node
	// start for seconds.
	startTime   = 5 * time.Minute
	silenceTime = 15 * time.Minute
	cancelTime  = 20 * time.Second
	// cancelAgain is how often an interrupt is sent: an agent that takes messages
	// at the same time may lose one that follows its prompt closely.
	cancelAgain = time.Second
)

// conversation is a session of an agent: one process at a time, which stays
// between prompts and is started again if it has ended.
type conversation struct {
	cfg       Config
	translate *translator

	starting sync.Mutex // held while a process is looked for or started
	life     agent.Life
	sending  sync.WaitGroup // answers and interrupts
	stopping sync.WaitGroup // interrupts alone; no prompt of the user is sent meanwhile

	permissions agent.Permissions[*question]
	asked       atomic.Int64 // counts questions, for their ids

	mu       sync.Mutex
	peer     *peer
	over     bool // no process may be started any more
	loading  bool // the agent repeats the conversation so far
	repeated int  // updates of it so far
	progress chan struct{}
	query    *query
	stopped  []*question                     // rejected with an interrupt, which the answer follows
	always   map[runnerscripts.ToolKind]bool // allowed for the session; see Config.KeepsAlways
	mode     string                          // as the user chose it; empty: the agent's own choice
	model    string
}

// query is a prompt that is worked on.
type query struct {
	cancelled bool          // it was interrupted
	stop      chan struct{} // closed then
}

// Start starts an agent and its session; one that has a history goes on. ctx
// covers the life of the conversation.
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
	return c, nil
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string) (runnerscripts.QueryCompleted, error) {
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
	c.translate.prompt(text)
	reply, err := c.ask(ctx, p, q, text)
	c.mu.Lock()
	c.query = nil // nothing is asked any more
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
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("%s has not taken the prompt: a hook has stopped it", c.cfg.Program),
		})
	}
	if err == nil && !cancelled && c.cfg.Answered != nil && !c.cfg.Answered() && c.translate.takeBack() {
		err = agent.APIFailure(0, fmt.Sprintf("%s has thrown away the answer, of which the model's API sent a part only", c.cfg.Program),
			"", "send the prompt again")
	}
	c.translate.endCalls()
	done := runnerscripts.QueryCompleted{
		StopReason: runnerscripts.StopReason(reply.StopReason), Usage: c.usage(reply),
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

// ask sends a prompt and waits for its end, whatever that is.
func (c *conversation) ask(ctx context.Context, p *peer, q *query, text string) (acpsdk.PromptResponse, error) {
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
		c.stopping.Wait() // what was to stop the last one must not stop this
		var o outcome
		o.err = p.Call(asking, jsonrpc.Request{
			Method: acpsdk.AgentMethodSessionPrompt,
			Params: acpsdk.PromptRequest{SessionId: p.session, Prompt: []acpsdk.ContentBlock{acpsdk.TextBlock(text)}},
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
			// The agent ignores the interrupt; the next prompt resumes the
			// conversation.
			p.Kill()
			<-result
			return acpsdk.PromptResponse{StopReason: acpsdk.StopReasonCancelled}, nil
		case <-watch.C:
			if c.waits() {
				p.heard.Store(time.Now().UnixNano()) // its silence begins when it need not wait any more
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
		if sent == nil && stop == nil { // it must not overtake the prompt
			c.sendInterrupt(ctx, p)
		}
	}
}

// sendInterrupt does not wait: that may take until the program reads its input.
func (c *conversation) sendInterrupt(ctx context.Context, p *peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.stopping.Add(1)
	c.sending.Go(func() {
		defer c.stopping.Done()
		_ = p.Notify(acpsdk.AgentMethodSessionCancel, acpsdk.CancelNotification{SessionId: p.session}) // if it has ended, it needs none
		c.withdrawAll()                                                                                // not before: the agent would go on with the answer
	})
}

// outcome says how a query ended.
func (c *conversation) outcome(ctx context.Context, p *peer, q *query, reply acpsdk.PromptResponse, err error) (acpsdk.PromptResponse, error) {
	c.mu.Lock()
	cancelled := q.cancelled
	c.mu.Unlock()
	if err == nil {
		return reply, nil
	}
	if ctx.Err() != nil {
		p.Kill()
		return reply, context.Cause(ctx)
	}
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if cancelled { // some agents answer so
			return acpsdk.PromptResponse{StopReason: acpsdk.StopReasonCancelled}, nil
		}
		return reply, c.failure(agent.FailedQuery, "%s ended the query with an error: %s", rpc)
	}
	if errors.Is(err, jsonrpc.ErrEnded) {
		return reply, p.crash(c.cfg.Program)
	}
	return reply, err
}

// failure makes an error of one that the agent answered with: other makes those that say
// neither that the model's API failed nor that the agent is not logged in. format has the
// agent's name and its words.
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

// words is what an agent says with an error.
func words(err *jsonrpc.Error) string {
	if len(err.Data) == 0 || string(err.Data) == "null" {
		return err.Message
	}
	return fmt.Sprintf("%s: %s", err.Message, err.Data)
}

// waits reports whether the query waits for something other than the agent's model.
func (c *conversation) waits() bool {
	return len(c.permissions.Pending()) > 0 || c.translate.busy()
}

// usage is what a query cost.
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

// Interrupt stops the running query. One that comes before the prompt is sent is
// kept until it is.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt(c.query)
	return nil
}

// interrupt stops a query, if it is still the one that runs. c.mu is held.
func (c *conversation) interrupt(q *query) {
	if q == nil || q != c.query || q.cancelled {
		return
	}
	q.cancelled = true
	close(q.stop)
}

// giveUp lets no program start any more, and returns the last one; busy while a prompt runs.
func (c *conversation) giveUp() (p *peer, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.peer, c.query != nil
}

// kill ends the program at once.
func (c *conversation) kill() {
	p, _ := c.giveUp()
	p.Kill()
}

// Close ends the program, politely first.
func (c *conversation) Close() error {
	c.life.Close(func() {
		p, busy := c.giveUp()
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
