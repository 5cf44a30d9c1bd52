package command

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// stopTime is how long an executor may take to end after SIGTERM.
const stopTime = 3 * time.Second

// conversation is a session of an executor. A one_shot executor has a process for each prompt. A
// persistent executor has one process, which stays between prompts and is restarted if it has
// ended.
type conversation struct {
	session  runnerscripts.Session
	profile  profile
	servers  []runnerscripts.MCPServer
	raw      bool
	out      agent.Sink
	recorder *record.Recorder
	silence  time.Duration
	timedOut <-chan time.Time // if not nil, ends a procedural executor instead of its time-out
	life     agent.Life

	prompts int          // including those of the transcript; used only by Prompt
	started bool         // an executor has got a prompt of the conversation; used only by Prompt
	heard   atomic.Int64 // when a prompt or a line of output was last handled, in Unix nanoseconds

	mu      sync.Mutex // not held during a write: the program may never read
	over    bool       // no process may be started any more
	process *child.Process
	stray   bool // process has ended a turn that was not running: its answers may be for other turns
	query   *query
}

// query is a running prompt.
type query struct {
	promptID  string
	blocks    int           // the number of blocks, including the prompt
	open      bool          // the last block is unfinished
	cancelled bool          // it was interrupted
	stop      chan struct{} // closed when it is interrupted
	completed bool          // turn_complete was received
	done      chan struct{} // closed when it has completed
	expired   bool          // its time-out has passed
	result    json.RawMessage
	answer    []byte // the text of the answer, if there is an output schema
}

// Prompt runs one query to its end.
func (c *conversation) Prompt(ctx context.Context, _, text string, _ ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	c.prompts++
	q := &query{
		promptID: record.PromptID(c.prompts, text), blocks: 1,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	c.mu.Lock()
	c.query = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.query = nil
		c.mu.Unlock()
	}()
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: record.BlockID(q.promptID, 0), Content: runnerscripts.Content{Type: "text", Text: text},
	})
	parameters, err := c.profile.ParametersOf(text)
	if err != nil {
		return runnerscripts.QueryCompleted{}, mismatch(err)
	}
	run := c.converse
	if c.profile.Type == executor.Procedural {
		run = c.call
	}
	err = run(ctx, q, parameters)
	reason := c.stopReason(q)
	if err == nil && reason != runnerscripts.StopCancelled {
		c.setResult(q)
	}
	return runnerscripts.QueryCompleted{StopReason: reason, ResultData: q.result}, err
}

// converse sends a prompt to the executor and waits for the end of the turn.
func (c *conversation) converse(ctx context.Context, q *query, parameters json.RawMessage) error {
	c.dropStray()
	resumed := c.started
	c.started = true
	p, message, err := c.choose(resumed, parameters)
	if err != nil {
		return err
	}
	return c.await(ctx, p, q, c.send(p, message))
}

// dropStray ends a process whose answers can no longer be matched with turns. The next one resumes
// the conversation.
func (c *conversation) dropStray() {
	c.mu.Lock()
	p, stray := c.process, c.stray
	c.stray = false
	c.mu.Unlock()
	if stray {
		p.Kill()
	}
}

func (c *conversation) stopReason(q *query) runnerscripts.StopReason {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.cancelled && !q.completed {
		return runnerscripts.StopCancelled
	}
	return runnerscripts.StopEndTurn
}

// choose returns the process and the message to send to it. It starts a process if none is running.
func (c *conversation) choose(resumed bool, parameters json.RawMessage) (*child.Process, any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, nil, agent.Closed()
	}
	c.heard.Store(time.Now().UnixNano())
	if p := c.process; p != nil && !ended(p) {
		return p, executor.Turn{Type: executor.TypeTurn, Parameters: parameters}, nil
	}
	cmd, err := launch(c.session, c.profile)
	if err != nil {
		return nil, nil, err
	}
	cmd.Read, cmd.Stderr = c.read, c.printed
	p, err := child.Start(cmd, nil)
	if err != nil {
		return nil, nil, agent.Failed("the executor cannot be started: %v; check that its command can run on this platform", err)
	}
	c.process = p
	return p, newInvocation(c.session, c.profile, c.servers, resumed, parameters), nil
}

// printed logs a line of standard error, for the author of the executor.
func (c *conversation) printed(line []byte) bool {
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level: "info", Message: strings.ToValidUTF8(string(line), "\uFFFD"), Stream: "stderr",
	})
	return true
}

// send writes a message on its own goroutine: a program that does not read its input would
// block the writer when the pipe is full. It closes the channel when the message is written or
// the program has ended.
func (c *conversation) send(p *child.Process, message any) <-chan struct{} {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = p.Send(message) // if the program has ended, Done says so
		if c.profile.Lifecycle != executor.Persistent {
			p.CloseInput()
		}
	}()
	return sent
}

func ended(p *child.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// await waits for the end of a query and of the write of its prompt.
func (c *conversation) await(ctx context.Context, p *child.Process, q *query, sent <-chan struct{}) error {
	defer func() { <-sent }() // does not block: the channel is closed or the process has ended
	tick := time.NewTicker(max(c.silence/10, time.Millisecond))
	defer tick.Stop()
	turn := q.done
	if c.profile.Lifecycle != executor.Persistent {
		turn = nil // the query ends with the process
	}
	written, stop := sent, q.stop
	var completed <-chan struct{}
	var late, expired <-chan time.Time
	if c.profile.Type == executor.Procedural {
		limit := time.NewTimer(c.profile.Timeout())
		defer limit.Stop()
		if expired = c.timedOut; expired == nil {
			expired = limit.C
		}
	}
	for {
		select {
		case <-written:
			// Complete only after the write: otherwise the next message, even a shutdown, would
			// wait for it.
			written, completed = nil, turn
		case <-completed:
			return nil
		case <-p.Done():
			return c.outcome(p, q)
		case <-stop:
			stop, turn, completed = nil, nil, nil // the process ends in any case
			p.Signal(syscall.SIGTERM)
			timer := time.NewTimer(stopTime)
			defer timer.Stop()
			late = timer.C
		case <-expired:
			expired = nil
			c.mu.Lock()
			q.expired = true
			c.mu.Unlock()
			p.Signal(syscall.SIGTERM)
			timer := time.NewTimer(stopTime)
			defer timer.Stop()
			late = timer.C
		case <-late:
			p.Kill()
			return c.outcome(p, q)
		case <-tick.C:
			quiet := time.Since(time.Unix(0, c.heard.Load()))
			if c.profile.Lifecycle == executor.Persistent && quiet > c.silence {
				p.Kill()
				return agent.Failed("the executor printed nothing for %v and was killed; look at why, and send the prompt again, which resumes the session", c.silence)
			}
		case <-ctx.Done():
			p.Kill()
			return context.Cause(ctx)
		}
	}
}

// outcome returns the error of a query whose process has ended.
func (c *conversation) outcome(p *child.Process, q *query) error {
	c.mu.Lock()
	cancelled, completed := q.cancelled, q.completed
	c.mu.Unlock()
	switch {
	case cancelled, c.profile.Type == executor.Procedural, c.profile.Lifecycle == executor.Persistent && completed:
		return nil
	case p.Err() != nil:
		return agent.Failed("the executor failed: %s; the next prompt starts it again", p.Crash())
	case c.profile.Lifecycle == executor.Persistent:
		return agent.Failed("the executor did not complete the turn: %s; print a turn_complete line at the end of each turn", p.Crash())
	}
	return nil
}

// Interrupt stops the running query: it sends SIGTERM to the executor.
func (c *conversation) Interrupt(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.query; q != nil && !q.cancelled {
		q.cancelled = true
		close(q.stop)
	}
	return nil
}

// Respond always fails: executors make no permission requests.
func (c *conversation) Respond(_ context.Context, id string, _ runnerscripts.PermissionDecision) error {
	return agent.NotWaiting(id)
}

// SetMode always fails: executors have no modes.
func (c *conversation) SetMode(context.Context, string) error {
	return agent.Unsupported("an executor has no modes; leave the mode as it is")
}

// SetModel always fails: the model is in the executor's own configuration.
func (c *conversation) SetModel(context.Context, string) error {
	return agent.Unsupported("the model of an executor cannot be changed; give it in config of its profile, if this one reads it there")
}

// preventStarts prevents further starts. It returns the last process, or nil, and whether a prompt is
// running.
func (c *conversation) preventStarts() (p *child.Process, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.process, c.query != nil
}

// kill ends the program at once.
func (c *conversation) kill() {
	if p, _ := c.preventStarts(); p != nil {
		p.Kill()
	}
}

// Close ends the program gracefully: a persistent executor gets a shutdown message.
func (c *conversation) Close() error {
	var err error
	c.life.Close(func() {
		p, busy := c.preventStarts()
		if p != nil {
			if busy {
				p.Signal(syscall.SIGTERM)
			} else if c.profile.Lifecycle == executor.Persistent {
				c.shutdown(p)
			}
			p.Close()
		}
		err = c.recorder.Close()
	})
	return err
}

// shutdown sends the shutdown message, unless the program no longer reads.
func (c *conversation) shutdown(p *child.Process) {
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-c.send(p, executor.Shutdown{Type: executor.TypeShutdown}):
	case <-timer.C: // Close also ends the blocked write
	}
}
