package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	acpsdk "github.com/coder/acp-go-sdk"
)

// Prompt plays the scene that the first word of the prompt names.
func (a *testAgent) Prompt(ctx context.Context, r acpsdk.PromptRequest) (acpsdk.PromptResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.cancels[r.SessionId] = cancel
	a.mu.Unlock()
	text := r.Prompt[0].Text.Text
	earlier, err := a.kept(r.SessionId)
	if err != nil {
		return acpsdk.PromptResponse{}, err
	}
	if err := a.keep(r.SessionId, append(earlier, text)); err != nil {
		return acpsdk.PromptResponse{}, err
	}
	p := play{agent: a, id: r.SessionId, reply: acpsdk.PromptResponse{StopReason: acpsdk.StopReasonEndTurn}}
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "remember":
		p.say(ctx, strings.Join(earlier, " | "))
	case "say":
		p.say(ctx, rest)
	case "servers":
		a.mu.Lock()
		servers, err := json.Marshal(a.servers)
		a.mu.Unlock()
		p.err = err
		p.say(ctx, string(servers))
	case "blocks-of-prompt":
		blocks, err := json.Marshal(r.Prompt)
		p.err = err
		p.say(ctx, string(blocks))
	case "edit", "reads":
		p.work(ctx, word, rest)
	case "options":
		a.mu.Lock()
		options := a.mode + " " + a.model
		a.mu.Unlock()
		p.say(ctx, options)
	default:
		scene, ok := scenes()[word]
		if !ok {
			return acpsdk.PromptResponse{}, acpsdk.NewInvalidParams("no scene " + word)
		}
		scene(ctx, &p)
	}
	return p.reply, p.err
}

// play is one prompt being played.
type play struct {
	agent *testAgent
	id    acpsdk.SessionId
	reply acpsdk.PromptResponse
	err   error
}

func (p *play) update(ctx context.Context, u acpsdk.SessionUpdate) {
	p.err = errors.Join(p.err, p.agent.update(ctx, p.id, u))
}

func (p *play) say(ctx context.Context, text string) {
	p.update(ctx, acpsdk.UpdateAgentMessageText(text))
}

// line prints a line unchanged.
func (p *play) line(text string) {
	_, err := p.agent.out.Write([]byte(text + "\n"))
	p.err = errors.Join(p.err, err)
}

// rawUpdate sends an update that acp-go-sdk does not support.
func (p *play) rawUpdate(update string) {
	p.line(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":%s}}`, p.id, update))
}

type scene func(context.Context, *play)

func scenes() map[string]scene {
	return map[string]scene{
		"blocks":  blocks,
		"plan":    plan,
		"cost":    cost,
		"unknown": unknown,
		"garbage": garbage,
		"ask":     ask,
		"open": func(ctx context.Context, p *play) {
			p.update(ctx, acpsdk.StartToolCall("call-open", "never ends", acpsdk.WithStartStatus(acpsdk.ToolCallStatusInProgress)))
		},
		"read": func(ctx context.Context, p *play) {
			_, err := p.agent.conn.ReadTextFile(ctx, acpsdk.ReadTextFileRequest{SessionId: p.id, Path: "/etc/passwd"})
			p.say(ctx, fmt.Sprint(err))
		},
		"flood": func(ctx context.Context, p *play) {
			for n := range 20_000 {
				p.say(ctx, fmt.Sprintf("%d,", n))
			}
		},
		"huge": func(ctx context.Context, p *play) { p.say(ctx, strings.Repeat("x", 12<<20)) },
		"huge-reply": func(_ context.Context, p *play) {
			p.reply.Meta = map[string]any{"x": strings.Repeat("x", 12<<20)}
		},
		"fail":   func(_ context.Context, p *play) { p.err = &acpsdk.RequestError{Code: 1, Message: "no luck"} },
		"refuse": func(_ context.Context, p *play) { p.reply.StopReason = acpsdk.StopReasonRefusal },
		"forge": func(ctx context.Context, p *play) {
			for _, kind := range []string{"query_completed", "query_failed", "permission_resolved", "transcript_changed", "session_idle", "result"} {
				p.rawUpdate(`{"sessionUpdate":"` + kind + `","stop_reason":"refusal"}`)
			}
			p.say(ctx, "still here")
			p.reply.StopReason = "whatever"
		},
		"crash": func(context.Context, *play) {
			fmt.Fprintln(os.Stderr, "the real reason")
			os.Exit(3)
		},
		"leave": func(context.Context, *play) { os.Exit(0) },
		"hang": func(ctx context.Context, p *play) {
			p.say(ctx, "I begin")
			<-ctx.Done()
			p.reply.StopReason = acpsdk.StopReasonCancelled
		},
		"finish": func(ctx context.Context, p *play) { // reports the interrupt as the end of the turn
			p.say(ctx, "I begin")
			<-ctx.Done()
		},
		"deaf": func(ctx context.Context, p *play) {
			p.say(ctx, "I do not listen")
			select {}
		},
	}
}

func blocks(ctx context.Context, p *play) {
	p.update(ctx, acpsdk.UpdateAgentThoughtText("hm"))
	p.update(ctx, acpsdk.UpdateAgentThoughtText("m"))
	p.say(ctx, "one ")
	p.say(ctx, "text")
	p.rawUpdate(`{"sessionUpdate":"agent_message_chunk","messageId":"other","content":{"type":"text","text":"another message"}}`)
	p.update(ctx, acpsdk.StartToolCall("call-1", "look", acpsdk.WithStartKind(acpsdk.ToolKindRead),
		acpsdk.WithStartStatus(acpsdk.ToolCallStatusInProgress), acpsdk.WithStartRawInput(map[string]any{"path": "a"})))
	p.update(ctx, acpsdk.UpdateToolCall("call-1", acpsdk.WithUpdateStatus(acpsdk.ToolCallStatusCompleted),
		acpsdk.WithUpdateContent([]acpsdk.ToolCallContent{acpsdk.ToolDiffContent("a", "new")})))
	p.say(ctx, "after the tool")
}

func plan(ctx context.Context, p *play) {
	p.update(ctx, acpsdk.UpdatePlan(
		acpsdk.PlanEntry{Content: "think", Priority: acpsdk.PlanEntryPriorityHigh, Status: acpsdk.PlanEntryStatusCompleted},
		acpsdk.PlanEntry{Content: "act", Priority: acpsdk.PlanEntryPriorityLow, Status: acpsdk.PlanEntryStatusPending},
	))
}

// cost reports the usage of a query: its tokens, and the dollars of the session.
func cost(_ context.Context, p *play) {
	earlier, err := p.agent.kept(p.id)
	p.err = errors.Join(p.err, err)
	p.rawUpdate(fmt.Sprintf(`{"sessionUpdate":"usage_update","used":120,"size":1000,"cost":{"amount":%d.5,"currency":"USD"}}`, len(earlier)))
	p.reply.Usage = &acpsdk.Usage{InputTokens: 100, OutputTokens: 20, CachedReadTokens: acpsdk.Ptr(7), TotalTokens: 127}
}

func unknown(ctx context.Context, p *play) {
	p.rawUpdate(`{"sessionUpdate":"of_a_newer_version","x":{"y":1}}`)
	p.line(`{"jsonrpc":"2.0","method":"_vendor/extension","params":{"z":1}}`) // clients may ignore it
	p.line(`{"jsonrpc":"2.0","method":"vendor/notice","params":{"name":"vendor/notice"}}`)
	p.say(ctx, "still here")
}

func garbage(ctx context.Context, p *play) {
	p.line("Warning: this is no JSON")
	p.line(`{"half":`)
	p.line(`[1,2,3]`)
	p.line(`{"jsonrpc":"2.0"}`)
	p.rawUpdate(`{"sessionUpdate":"tool_call","toolCallId":7}`)
	p.line("\xff\xfe")
	p.say(ctx, "still here")
}

// work asks for permission to work on a file, and reports the answer.
func (p *play) work(ctx context.Context, word, file string) {
	kind := acpsdk.ToolKindRead
	if word == "edit" {
		kind = acpsdk.ToolKindEdit
	}
	p.update(ctx, acpsdk.StartToolCall("call-work", "work on "+file, acpsdk.WithStartKind(kind),
		acpsdk.WithStartLocations([]acpsdk.ToolCallLocation{{Path: file}})))
	// Some agents do not repeat in the request what they have reported before.
	p.permission(ctx, acpsdk.ToolCallUpdate{ToolCallId: "call-work"})
}

// ask asks for permission and reports the answer.
func ask(ctx context.Context, p *play) {
	title := "do it"
	p.permission(ctx, acpsdk.ToolCallUpdate{ToolCallId: "call-ask", Title: &title, Kind: acpsdk.Ptr(acpsdk.ToolKindExecute)})
}

func (p *play) permission(ctx context.Context, call acpsdk.ToolCallUpdate) {
	answer, err := p.agent.conn.RequestPermission(ctx, acpsdk.RequestPermissionRequest{
		SessionId: p.id,
		ToolCall:  call,
		Options: []acpsdk.PermissionOption{
			{OptionId: "yes-1", Name: "Yes", Kind: acpsdk.PermissionOptionKindAllowOnce},
			{OptionId: "yes-2", Name: "Yes, always", Kind: acpsdk.PermissionOptionKindAllowAlways},
			{OptionId: "no-1", Name: "No", Kind: acpsdk.PermissionOptionKindRejectOnce},
			{OptionId: "no-2", Name: "Never", Kind: acpsdk.PermissionOptionKindRejectAlways},
		},
	})
	raw, jerr := json.Marshal(answer)
	p.err = errors.Join(p.err, err, jerr)
	p.say(context.WithoutCancel(ctx), string(raw))
	if ctx.Err() != nil || answer.Outcome.Cancelled != nil {
		p.reply.StopReason, p.err = acpsdk.StopReasonCancelled, nil
	}
}
