package hold

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// chat filters the answers of OpenAI's Chat Completions. The pieces of a call have an index in their choice.
type chat struct {
	judge   Judge
	choices map[string]*choice // by index
}

// choice has the calls of a choice until it ends.
type choice struct {
	held
	calls map[string]*chatCall // by index
}

type chatCall struct {
	id, name  string
	arguments strings.Builder
	mixed     bool // its pieces may belong to several calls
	refusal   string
}

// add adds a piece of the call.
func (c *chatCall) add(piece object) {
	f := functionOf(piece)
	id, name := text(piece, "id"), text(f, "name")
	index, _ := piece["index"].(json.Number)
	_, err := strconv.ParseUint(string(index), 10, 31)
	c.mixed = c.mixed || err != nil || c.id != "" && id != "" && id != c.id || c.name != "" && name != ""
	c.id, c.name = cmp.Or(c.id, id), cmp.Or(c.name, name)
	c.arguments.WriteString(argumentsOf(f))
}

func (c *chat) event(name string, data object) ([]event, error) {
	var out []event
	ended := map[string]bool{}
	for _, one := range children(data, "choices") {
		ch, _ := one.(object)
		index, delta := number(ch, "index"), child(ch, "delta")
		if tools := children(delta, "tool_calls"); len(tools) > 0 {
			if err := c.hold(index, event{name, only(data, ch)}, tools); err != nil {
				return nil, err
			}
			delete(delta, "tool_calls")
		}
		withoutObsolete(delta)
		if ch["finish_reason"] != nil && c.choices[index] != nil {
			ended[index] = true
			list, passed := c.end(index, data, ch)
			out = append(out, list...)
			if passed == 0 && text(ch, "finish_reason") == "tool_calls" {
				ch["finish_reason"] = "stop"
			}
		}
	}
	if len(ended) == 0 && len(c.choices) > 0 && bare(data) {
		return out, nil // its call waits
	}
	return append(out, event{name, data}), nil
}

// withoutObsolete refuses a call in the form that the API had before tools.
func withoutObsolete(message object) {
	call := child(message, "function_call")
	if call == nil {
		return
	}
	delete(message, "function_call")
	if name := text(call, "name"); name != "" {
		message["content"] = "The call of " + name + " was refused: its form is obsolete, and cannot be judged."
	}
}

// only returns an event of one choice, with the calls of its delta.
func only(data, ch object) object {
	one := maps.Clone(ch)
	one["delta"] = object{"tool_calls": child(ch, "delta")["tool_calls"]}
	one["finish_reason"] = nil
	whole := maps.Clone(data)
	whole["choices"] = []any{one}
	delete(whole, "usage")
	return whole
}

// bare reports whether nothing is left of an event but the frame of a call.
func bare(data object) bool {
	list := children(data, "choices")
	for _, one := range list {
		ch, _ := one.(object)
		if len(child(ch, "delta")) > 0 || ch["finish_reason"] != nil {
			return false
		}
	}
	return len(list) > 0 && data["usage"] == nil
}

func (c *chat) hold(index string, e event, tools []any) error {
	if c.choices == nil {
		c.choices = map[string]*choice{}
	}
	ch := c.choices[index]
	if ch == nil {
		ch = &choice{calls: map[string]*chatCall{}}
		c.choices[index] = ch
	}
	for _, one := range tools {
		t, _ := one.(object)
		call := ch.calls[number(t, "index")]
		if call == nil {
			call = &chatCall{}
			ch.calls[number(t, "index")] = call
		}
		call.add(t)
	}
	return ch.add(e)
}

// functionOf returns the part of a call that names the tool.
func functionOf(t object) object {
	if custom := child(t, "custom"); custom != nil {
		return custom
	}
	return child(t, "function")
}

// argumentsOf returns the input of a call, which is a text; some servers write an object.
func argumentsOf(function object) string {
	var all string
	for _, key := range []string{"arguments", "input"} {
		switch v := function[key].(type) {
		case nil:
		case string:
			all += v
		default:
			all += string(encoded(v))
		}
	}
	return all
}

// end judges the calls of a choice that ends, and returns the events of those that passed and a text for the others.
func (c *chat) end(index string, data, ch object) (out []event, passed int) {
	of := c.choices[index]
	delete(c.choices, index)
	var refusals []string
	for _, key := range slices.Sorted(maps.Keys(of.calls)) {
		call := of.calls[key]
		if call.mixed {
			call.refusal = "The call of " + call.name + " was refused: the answer does not say which pieces belong to it, so it cannot be judged."
		} else {
			call.refusal = c.judge(call.name, json.RawMessage(call.arguments.String()))
		}
		if call.refusal != "" {
			refusals = append(refusals, call.refusal)
		} else {
			passed++
		}
	}
	for _, e := range of.events {
		one, _ := children(e.data, "choices")[0].(object)
		delta := child(one, "delta")
		left := slices.DeleteFunc(children(delta, "tool_calls"), func(t any) bool {
			o, _ := t.(object)
			return of.calls[number(o, "index")].refusal != ""
		})
		if len(left) > 0 {
			delta["tool_calls"] = left
			out = append(out, e)
		}
	}
	if len(refusals) > 0 {
		one := object{"index": ch["index"], "delta": object{"content": strings.Join(refusals, "\n")}, "finish_reason": nil}
		frame := maps.Clone(data)
		frame["choices"] = []any{one}
		delete(frame, "usage")
		out = append(out, event{"", frame})
	}
	return out, passed
}

func (c *chat) whole(answer object) {
	for _, one := range children(answer, "choices") {
		ch, _ := one.(object)
		message := child(ch, "message")
		withoutObsolete(message)
		calls := children(message, "tool_calls")
		if len(calls) == 0 {
			continue
		}
		said := []string{}
		if t := text(message, "content"); t != "" {
			said = append(said, t)
		}
		left := slices.DeleteFunc(calls, func(t any) bool {
			o, _ := t.(object)
			f := functionOf(o)
			refusal := c.judge(text(f, "name"), json.RawMessage(argumentsOf(f)))
			if refusal != "" {
				said = append(said, refusal)
			}
			return refusal != ""
		})
		message["content"] = strings.Join(said, "\n")
		if message["tool_calls"] = left; len(left) == 0 {
			delete(message, "tool_calls")
			if text(ch, "finish_reason") == "tool_calls" {
				ch["finish_reason"] = "stop"
			}
		}
	}
}

// responses filters the answers of OpenAI's Responses. An answer has items, which have an index in a stream.
type responses struct {
	judge Judge
	items map[string]*held  // calls that have begun, by index
	texts map[string]string // of calls that were judged, empty for those that passed, by keyOf
}

// callOf returns the tool and the input of an item that is a call. ok is false for other items.
func callOf(item object) (tool string, input json.RawMessage, ok bool) {
	switch text(item, "type") {
	case "function_call":
		return spaced(item), json.RawMessage(text(item, "arguments")), true
	case "custom_tool_call":
		return spaced(item), encoded(object{"input": item["input"]}), true
	case "local_shell_call":
		return "local_shell", encoded(item["action"]), true
	case "shell_call", "apply_patch_call", "computer_call", "mcp_call", "mcp_approval_request":
		return strings.TrimSuffix(text(item, "type"), "_call"), encoded(item), true
	}
	return "", nil, false
}

// spaced returns the name of a tool, behind its namespace.
func spaced(item object) string {
	if space := text(item, "namespace"); space != "" {
		return space + "/" + text(item, "name")
	}
	return text(item, "name")
}

func (r *responses) event(name string, data object) ([]event, error) {
	e := event{name, data}
	index := number(data, "output_index")
	item := child(data, "item")
	_, _, isCall := callOf(item)
	switch kind := text(data, "type"); {
	case kind == "response.output_item.added" && isCall:
		if r.items == nil {
			r.items = map[string]*held{}
		}
		r.items[index] = &held{}
		return nil, r.items[index].add(e)
	case kind == "response.output_item.done" && isCall:
		var before []event
		if h := r.items[index]; h != nil {
			before = h.events
			delete(r.items, index)
		}
		tool, input, _ := callOf(item)
		refusal := r.judge(tool, input)
		if r.texts == nil {
			r.texts = map[string]string{}
		}
		r.texts[keyOf(item)] = refusal
		if refusal == "" {
			return append(before, e), nil
		}
		return refused(data, item, refusal), nil
	case r.items[index] != nil && data["output_index"] != nil:
		return nil, r.items[index].add(e)
	case child(data, "response") != nil:
		r.output(child(data, "response"), func(item object) string {
			if judged, ok := r.texts[keyOf(item)]; ok {
				return judged
			}
			tool, input, _ := callOf(item)
			return r.judge(tool, input)
		})
	}
	return []event{e}, nil
}

// keyOf returns what tells calls of an answer apart. An ID alone could be that of two calls.
func keyOf(item object) string {
	tool, input, _ := callOf(item)
	return strings.Join([]string{text(item, "id"), text(item, "call_id"), tool, string(input)}, "\x00")
}

// refused returns the events of a message in place of a call.
func refused(data, item object, refusal string) []event {
	index, id := data["output_index"], "msg_"+text(item, "id")
	part := func(text string) object {
		return object{"type": "output_text", "text": text, "annotations": []any{}}
	}
	of := func(kind string, more object) event {
		o := object{"type": kind, "output_index": index}
		if n, ok := data["sequence_number"]; ok {
			o["sequence_number"] = n
		}
		maps.Copy(o, more)
		return event{kind, o}
	}
	begun := message(item, refusal)
	begun["status"], begun["content"] = "in_progress", []any{}
	return []event{
		of("response.output_item.added", object{"item": begun}),
		of("response.content_part.added", object{"item_id": id, "content_index": 0, "part": part("")}),
		of("response.output_text.delta", object{"item_id": id, "content_index": 0, "delta": refusal}),
		of("response.output_text.done", object{"item_id": id, "content_index": 0, "text": refusal}),
		of("response.content_part.done", object{"item_id": id, "content_index": 0, "part": part(refusal)}),
		of("response.output_item.done", object{"item": message(item, refusal)}),
	}
}

// message returns the message that takes the place of a call.
func message(item object, refusal string) object {
	return object{
		"type": "message", "id": "msg_" + text(item, "id"), "role": "assistant", "status": "completed",
		"content": []any{object{"type": "output_text", "text": refusal, "annotations": []any{}}},
	}
}

func (r *responses) whole(answer object) {
	r.output(answer, func(item object) string {
		tool, input, _ := callOf(item)
		return r.judge(tool, input)
	})
}

// output replaces the calls of a response that are refused.
func (r *responses) output(response object, refusal func(item object) string) {
	list := children(response, "output")
	for i, one := range list {
		item, _ := one.(object)
		if _, _, isCall := callOf(item); !isCall {
			continue
		}
		if why := refusal(item); why != "" {
			list[i] = message(item, why)
		}
	}
}
