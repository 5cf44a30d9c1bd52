package hold

import (
	"encoding/json"
	"errors"
	"strings"
)

// anthropic filters the answers of the Messages API. Each block of a message has an index.
type anthropic struct {
	judge  Judge
	tools  map[string]*toolBlock // that have begun, by index
	judged map[string]bool       // indexes of those that have ended
	calls  int                   // that have passed
}

type toolBlock struct {
	held
	name  string
	first object // the input with which the block begins
	input strings.Builder
}

func (a *anthropic) event(name string, data object) ([]event, error) {
	e := event{name, data}
	index := number(data, "index")
	switch text(data, "type") {
	case "message_start":
		a.whole(child(data, "message"))
	case "content_block_start":
		block := child(data, "content_block")
		if text(block, "type") != "tool_use" {
			return []event{e}, nil
		}
		if a.tools == nil {
			a.tools = map[string]*toolBlock{}
		}
		t := &toolBlock{name: text(block, "name"), first: child(block, "input")}
		a.tools[index] = t
		return nil, t.add(e)
	case "content_block_delta":
		t := a.tools[index]
		switch {
		case t == nil && a.judged[index]: // agents add it to the call
			return nil, unreadable(errors.New("a call goes on behind its end"))
		case t == nil:
			return []event{e}, nil
		}
		t.input.WriteString(text(child(data, "delta"), "partial_json"))
		return nil, t.add(e)
	case "content_block_stop":
		t := a.tools[index]
		if t == nil {
			return []event{e}, nil
		}
		delete(a.tools, index)
		return a.end(t, e), nil
	case "message_delta":
		if delta := child(data, "delta"); text(delta, "stop_reason") == "tool_use" && a.calls == 0 {
			delta["stop_reason"] = "end_turn"
		}
	}
	return []event{e}, nil
}

// end judges a call that is complete.
func (a *anthropic) end(t *toolBlock, stop event) []event {
	input := json.RawMessage(t.input.String())
	if len(input) == 0 {
		input = encoded(t.first)
	}
	if a.judged == nil {
		a.judged = map[string]bool{}
	}
	a.judged[number(stop.data, "index")] = true
	refusal := a.judge(t.name, input)
	if refusal == "" {
		a.calls++
		return append(t.events, stop)
	}
	index := stop.data["index"]
	return []event{
		{"content_block_start", object{"type": "content_block_start", "index": index, "content_block": object{"type": "text", "text": ""}}},
		{"content_block_delta", object{"type": "content_block_delta", "index": index, "delta": object{"type": "text_delta", "text": refusal}}},
		stop,
	}
}

func (a *anthropic) whole(answer object) {
	list := children(answer, "content")
	for i, one := range list {
		block, _ := one.(object)
		if text(block, "type") != "tool_use" {
			continue
		}
		refusal := a.judge(text(block, "name"), encoded(block["input"]))
		if refusal == "" {
			a.calls++
			continue
		}
		list[i] = object{"type": "text", "text": refusal}
	}
	if a.calls == 0 && text(answer, "stop_reason") == "tool_use" {
		answer["stop_reason"] = "end_turn"
	}
}
