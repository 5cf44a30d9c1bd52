package main

import (
	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// pending is what a printer remembers of a permission request.
type pending struct {
	title, mayDeny string
}

// permission prints denied requests: the agent may have shown the tool call as if it were done.
func (p *textPrinter) permission(ev runnerscripts.Event) error {
	if req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev); err == nil && ev.Type == runnerscripts.TypePermissionRequest {
		title := firstOf(req.ToolCall.Title, req.ToolCall.Name)
		p.requests.Put(req.ID, pending{title, req.MayDeny}, len(title)+len(req.MayDeny))
		return nil
	}
	done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
	req, known := p.requests.Get(done.ID)
	flags, denied := p.denied.Get(done.ID)
	p.requests.Delete(done.ID)
	p.denied.Delete(done.ID)
	if err != nil || !known || done.Kind == "" || done.Kind.Allows() {
		return nil
	}
	if err := p.endLine(); err != nil {
		return err
	}
	hint := ""
	switch {
	case done.Reason == runnerscripts.ReasonRule:
		hint = "; the rule " + done.Rule + " denies it"
	case done.Reason == runnerscripts.ReasonMode:
		hint = "; the mode of the permissions denies it"
	case req.mayDeny != "":
		hint = "; it may be what the rule " + req.mayDeny + " denies"
	case denied:
		hint = "; " + flags + " would have allowed it"
	case done.By != "":
		hint = "; " + done.By + " denies it"
	case done.Reason == runnerscripts.ReasonTimeout:
		hint = "; there was no answer in time"
	}
	return p.err.Row(term.Dim("denied: " + req.title + hint))
}
