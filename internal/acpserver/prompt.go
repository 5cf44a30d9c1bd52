package acpserver

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// prompt accepts a prompt, which can be cancelled from then on.
func (s *server) prompt(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.PromptRequest](params)
	if err != nil {
		return nil, err
	}
	c, err := s.opened(req.SessionId)
	if err != nil {
		return nil, err
	}
	text, attachments, err := c.paths.content(req.Prompt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if !c.begin(cancel) {
		cancel(nil)
		return nil, &acp.RequestError{
			Code: codeInvalidRequest, Message: fmt.Sprintf("wait for the prompt that session %s works on, or cancel it", c.id),
			Data: map[string]any{"code": "session_busy"},
		}
	}
	if trace, ok := req.Meta[traceKey].(string); ok {
		s.log.Debug("a prompt has come", "session", c.id, traceKey, trace)
	}
	return func(life context.Context) (any, error) {
		defer cancel(nil)
		result, err := s.converse(ctx, life, c, text, attachments)
		c.end()
		if err != nil {
			return nil, err
		}
		return result, nil
	}, nil
}

// errCancelled: the client has cancelled the prompt with session/cancel.
var errCancelled = errors.New("the prompt was cancelled")

// begin makes a prompt the running one. It returns false if another prompt runs.
func (c *conversation) begin(cancel context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		return false
	}
	c.cancel = cancel
	return true
}

func (c *conversation) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = nil
}

// busy reports whether a prompt of the client runs.
func (c *conversation) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancel != nil
}

// cancelPrompt cancels the running prompt of the client, and returns false if there is none.
func (c *conversation) cancelPrompt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel == nil {
		return false
	}
	c.cancel(errCancelled)
	return true
}

// running returns the query that runs, of any client; nil if there is none.
func (c *conversation) running() *session.Turn {
	agent := c.server.cfg.Host.Opened(string(c.id))
	if agent == nil {
		return nil
	}
	turns := agent.Turns()
	if len(turns) == 0 {
		return nil
	}
	return turns[0]
}

// interrupt stops a query whose prompt is not of this connection.
func (c *conversation) interrupt(ctx context.Context, turn *session.Turn) {
	if err := turn.Interrupt(ctx); err != nil && !errors.Is(err, session.ErrClosed) {
		c.server.log.Warn("the agent could not be interrupted", "session", c.id, "error", err)
	}
}

// cancelled returns why the client has cancelled a prompt; nil if it has not.
func cancelled(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errCancelled) || errors.Is(cause, errWithdrawn) {
		return cause
	}
	return nil
}

// converse runs a prompt and returns its outcome, when the client has all events of it. It interrupts the agent when the client
// cancels the prompt. If the connection ends, the query goes on without the client.
func (s *server) converse(
	ctx, life context.Context, c *conversation, text string, attachments []runnerscripts.Attachment,
) (acp.PromptResponse, error) {
	turn, delivered, err := c.send(life, text, attachments)
	if errors.Is(err, session.ErrClosed) && cancelled(ctx) != nil {
		return ending(cancelled(ctx), runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled}, nil)
	}
	if err != nil {
		return acp.PromptResponse{}, err
	}
	ended := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		if cancelled(ctx) == nil {
			return
		}
		if err := turn.Interrupt(life); err != nil && !errors.Is(err, session.ErrClosed) {
			s.log.Warn("the agent could not be interrupted", "session", c.id, "error", err)
		}
	})
	result, err := turn.Wait(life)
	close(ended)
	stopping.Wait()
	delivered(life)
	return ending(cancelled(ctx), result, err)
}

// send sends a prompt to the agent. delivered waits until the client has the events of the query, or gets no more.
func (c *conversation) send(
	life context.Context, text string, attachments []runnerscripts.Attachment,
) (turn *session.Turn, delivered func(context.Context), err error) {
	agent, read, err := c.attach(life)
	if err != nil {
		return nil, nil, err
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if turn, err = agent.Prompt(life, text, attachments...); err != nil {
		return nil, nil, err
	}
	last := make(chan struct{})
	c.own[turn.ID()] = last
	return turn, func(life context.Context) {
		select {
		case <-last:
		case <-read:
		case <-life.Done():
		}
	}, nil
}

// ending returns the answer to a prompt. A prompt that was cancelled before its end is answered
// as cancelled, as the protocol demands, even if the agent completed or failed before the
// interrupt reached it.
func ending(cancelled error, result runnerscripts.QueryCompleted, err error) (acp.PromptResponse, error) {
	if q := new(session.QueryError); err != nil && (cancelled == nil || !errors.As(err, &q)) {
		return acp.PromptResponse{}, err
	}
	if errors.Is(cancelled, errWithdrawn) {
		return acp.PromptResponse{}, errWithdrawn
	}
	if cancelled != nil {
		result.StopReason = runnerscripts.StopCancelled
	}
	return acp.PromptResponse{StopReason: stopReason(result.StopReason), Usage: usage(result.Usage)}, nil
}

func stopReason(r runnerscripts.StopReason) acp.StopReason {
	return acp.StopReason(cmp.Or(r, runnerscripts.StopEndTurn))
}

// usage returns the token counts of a prompt; nil if the agent does not report them.
func usage(u runnerscripts.Usage) *acp.Usage {
	if u == (runnerscripts.Usage{}) {
		return nil
	}
	read, written := int(u.CacheReadTokens), int(u.CacheWriteTokens)
	in, out := int(u.InputTokens), int(u.OutputTokens)
	return &acp.Usage{
		InputTokens: in, OutputTokens: out, CachedReadTokens: &read, CachedWriteTokens: &written,
		TotalTokens: in + out + read + written,
	}
}

// content joins the blocks of a prompt into one text. Links are named in their place, and embedded
// texts follow at the end. Images and other embedded files are attachments, whose types follow from
// their contents: clients call a JPEG image/jpg, too.
func (p *paths) content(blocks []acp.ContentBlock) (string, []runnerscripts.Attachment, error) {
	var text, context strings.Builder
	var attachments []runnerscripts.Attachment
	attach := func(i int, name, data string) error {
		content, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return Invalid("prompt[%d]: its data is not base64: %v", i, err)
		}
		attachments = append(attachments, runnerscripts.Attachment{Name: name, Data: content})
		return nil
	}
	for i, b := range blocks {
		var err error
		switch {
		case b.Text != nil:
			text.WriteString(b.Text.Text)
		case b.ResourceLink != nil:
			text.WriteString(p.link(b.ResourceLink.Name, b.ResourceLink.Uri))
		case b.Resource != nil && b.Resource.Resource.TextResourceContents != nil:
			r := b.Resource.Resource.TextResourceContents
			text.WriteString(p.link("", r.Uri))
			fmt.Fprintf(&context, "\n\n<context ref=%q>\n%s\n</context>", p.reference(r.Uri), r.Text)
		case b.Resource != nil && b.Resource.Resource.BlobResourceContents != nil:
			r := b.Resource.Resource.BlobResourceContents
			text.WriteString(p.link("", r.Uri))
			err = attach(i, path.Base(p.reference(r.Uri)), r.Blob)
		case b.Image != nil:
			name := ""
			if b.Image.Uri != nil {
				name = path.Base(p.reference(*b.Image.Uri))
			}
			err = attach(i, name, b.Image.Data)
		default:
			err = Invalid("prompt[%d]: agents in sandboxes take only text, images, links and embedded files; leave it out, or link to it", i)
		}
		if err != nil {
			return "", nil, err
		}
	}
	switch {
	case strings.TrimSpace(text.String()) != "":
	case len(attachments) > 0:
		return "", nil, Invalid("the prompt has images alone; say what the agent should do with them")
	default:
		return "", nil, Invalid("the prompt is empty; say what the agent should do")
	}
	return text.String() + context.String(), attachments, nil
}

// link returns the Markdown link to a resource in a prompt.
func (p *paths) link(name, uri string) string {
	ref := p.reference(uri)
	if name == "" {
		name = ref[strings.LastIndexByte(ref, '/')+1:]
	}
	return "[@" + name + "](" + ref + ")"
}

// reference returns the name by which the agent finds a resource. For a file in the editor's
// folder it is the path in the folder, which is the same in the workspace.
func (p *paths) reference(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return uri
	}
	name := u.Path
	if rel, err := filepath.Rel(p.folder, name); err == nil && filepath.IsLocal(rel) {
		name = rel
	}
	if u.RawQuery != "" {
		name += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		name += "#" + u.Fragment
	}
	return name
}
