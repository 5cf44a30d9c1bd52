package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
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
	c, err := s.find(req.SessionId)
	if err != nil {
		return nil, err
	}
	text, err := c.paths.text(req.Prompt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	if !c.begin(cancel) {
		cancel()
		return nil, &acp.RequestError{
			Code: codeInvalidRequest, Message: fmt.Sprintf("wait for the prompt that session %s works on, or cancel it", c.id),
		}
	}
	return func() (any, error) {
		defer cancel()
		result, err := s.converse(ctx, c, text)
		c.end()
		if err != nil {
			return nil, err
		}
		return result, nil
	}, nil
}

// begin makes a prompt the running one. It returns false if another prompt runs.
func (c *conversation) begin(cancel context.CancelFunc) bool {
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

// cancelPrompt cancels the running prompt, if there is one.
func (c *conversation) cancelPrompt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// converse runs a prompt and returns its outcome. It interrupts the agent when ctx is done.
func (s *server) converse(ctx context.Context, c *conversation, text string) (acp.PromptResponse, error) {
	// The editor gets the end of a cancelled prompt too.
	telling := context.WithoutCancel(ctx)
	turn, err := c.agent.Prompt(telling, text)
	if errors.Is(err, session.ErrClosed) && ctx.Err() != nil {
		return acp.PromptResponse{StopReason: acp.StopReasonCancelled}, nil
	}
	if err != nil {
		return acp.PromptResponse{}, err
	}
	ended := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ended:
		case <-ctx.Done():
			if err := turn.Interrupt(telling); err != nil && !errors.Is(err, session.ErrClosed) {
				s.log.Warn("the agent could not be interrupted", "session", c.id, "error", err)
			}
		}
	})
	result, err := turn.Wait(telling)
	close(ended)
	stopping.Wait()
	c.asking.withdraw()
	return ending(ctx.Err() != nil, result, err)
}

// ending returns the answer to a prompt. A prompt that was cancelled before its end is answered
// as cancelled, as the protocol demands, even if the agent completed or failed before the
// interrupt reached it.
func ending(cancelled bool, result runnerscripts.QueryCompleted, err error) (acp.PromptResponse, error) {
	if q := new(session.QueryError); err != nil && (!cancelled || !errors.As(err, &q)) {
		return acp.PromptResponse{}, err
	}
	if cancelled {
		result.StopReason = runnerscripts.StopCancelled
	}
	return acp.PromptResponse{StopReason: stopReason(result.StopReason), Usage: usage(result.Usage)}, nil
}

// take sends an event to the editor. The agent waits for it.
func (c *conversation) take(ctx context.Context, ev runnerscripts.Event) error {
	switch ev.Type {
	case runnerscripts.TypePermissionRequest:
		c.ask(ctx, ev)
	case runnerscripts.TypePermissionResolved:
		c.asking.resolved(ev)
	default:
		if u, ok := c.updater.update(ev); ok {
			return c.server.tell(ctx, c.id, u)
		}
	}
	return nil
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

// text joins the blocks of a prompt into one text. Links are named in their place, and embedded
// texts follow at the end.
func (p *paths) text(blocks []acp.ContentBlock) (string, error) {
	var text, context strings.Builder
	for i, b := range blocks {
		switch {
		case b.Text != nil:
			text.WriteString(b.Text.Text)
		case b.ResourceLink != nil:
			text.WriteString(p.link(b.ResourceLink.Name, b.ResourceLink.Uri))
		case b.Resource != nil && b.Resource.Resource.TextResourceContents != nil:
			r := b.Resource.Resource.TextResourceContents
			text.WriteString(p.link("", r.Uri))
			fmt.Fprintf(&context, "\n\n<context ref=%q>\n%s\n</context>", p.reference(r.Uri), r.Text)
		case b.Resource != nil:
			return "", invalid("prompt[%d]: only text can be embedded; link to the resource instead", i)
		default:
			return "", invalid("prompt[%d]: agents in sandboxes take only text, links and embedded texts; leave it out, or link to it", i)
		}
	}
	if strings.TrimSpace(text.String()) == "" {
		return "", invalid("the prompt is empty; say what the agent should do")
	}
	return text.String() + context.String(), nil
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
