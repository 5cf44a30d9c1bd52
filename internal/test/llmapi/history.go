package llmapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A request whose history the vendor would refuse is refused with the vendor's own words, and
// Close returns it: an agent that sends such a history fails with the real API at each prompt from
// then on. The rules are those that the vendors document or that their APIs are known to enforce,
// and no others. The links name where the words come from.

// refusal is the first error in a history, in the words of the vendor. "" means none.
type refusal string

// refused returns a refusal.
func refused(format string, args ...any) refusal { return refusal(fmt.Sprintf(format, args...)) }

// refuses records and answers a request whose history is not valid, and reports whether it did.
func (s *Server) refuses(w http.ResponseWriter, rec Request, why refusal, answer func(http.ResponseWriter, int, string)) bool {
	if why == "" {
		return false
	}
	rec.Status, rec.Scenario = http.StatusBadRequest, ""
	s.record(rec)
	s.mu.Lock()
	s.refused = append(s.refused, fmt.Errorf("%s: the agent has sent a history that the vendor refuses: %s", rec.Path, why))
	s.mu.Unlock()
	answer(w, http.StatusBadRequest, string(why))
	return true
}

// refusal checks the messages, after those of the same role are combined, as the API does.
//
//   - https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls: the results follow
//     their calls at once, and come first in their message
//   - https://github.com/anthropics/claude-code/issues/13460, a result without a call
//   - https://github.com/anthropics/claude-code/issues/1686, a call without a result
//   - https://github.com/vectorize-io/hindsight/pull/4250, two results
//   - https://github.com/anthropics/claude-code/issues/20901, one ID twice
func (r anthropicRequest) refusal() refusal {
	if len(r.Messages) == 0 {
		return "messages: at least one message is required"
	}
	seen, open := map[string]bool{}, []string{} // the calls of the last assistant message that have no result yet
	var last []string                           // all its calls
	role, at := "", 0                           // of the combined message
	for i, m := range r.Messages {
		switch m.Role {
		case "user", "assistant":
		case "system":
			continue // an instruction in the middle, which is in no turn
		default:
			return refused("messages.%d.role: Input should be 'user' or 'assistant'", i)
		}
		if role == "" && m.Role != "user" {
			return `messages: first message must use the "user" role`
		}
		if m.Role != role {
			if role == "user" && len(open) > 0 {
				return unanswered(at, open)
			}
			if m.Role == "assistant" {
				open, last = nil, nil
			}
			role, at = m.Role, i
		}
		for n, b := range m.Content {
			switch b.Type {
			case "tool_use":
				if m.Role != "assistant" {
					return refused("messages.%d: `tool_use` blocks can only be in `assistant` messages", i)
				}
				if seen[b.ID] {
					return refused("messages.%d.content.%d: `tool_use` ids must be unique", i, n)
				}
				seen[b.ID] = true
				open, last = append(open, b.ID), append(last, b.ID)
			case "tool_result":
				switch {
				case m.Role != "user":
					return refused("messages.%d: `tool_result` blocks can only be in `user` messages", i)
				case !slices.Contains(last, b.ToolUseID):
					return refused("messages.%d.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s. "+
						"Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", i, n, b.ToolUseID)
				case !slices.Contains(open, b.ToolUseID):
					return refused("messages.%d.content.%d: each tool_use must have a single result. "+
						"Found multiple `tool_result` blocks with id: %s", i, n, b.ToolUseID)
				}
				open = slices.DeleteFunc(open, func(id string) bool { return id == b.ToolUseID })
			default:
				if m.Role == "user" && len(open) > 0 {
					return unanswered(at, open)
				}
			}
		}
	}
	if role == "user" && len(open) > 0 {
		return unanswered(at, open)
	}
	return ""
}

// unanswered is the refusal of calls that the message with the index at should answer.
func unanswered(at int, ids []string) refusal {
	return refused("messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s. "+
		"Each `tool_use` block must have a corresponding `tool_result` block in the next message.", at-1, strings.Join(ids, ", "))
}

// refusal checks that the results of calls follow them at once, in any order.
//
//   - https://github.com/run-llama/llama_index/issues/10493, a result without calls before it
//   - https://github.com/agno-agi/agno/issues/5116, two results
//   - https://github.com/RamiAwar/dataline/issues/172, a call without a result
func (r chatRequest) refusal() refusal {
	roles := []string{"system", "assistant", "user", "function", "tool", "developer"}
	answered := map[string]int{} // the index of the result of each call since the last message of the assistant
	var open []string
	called := false // the results of calls may come here
	for i, m := range r.Messages {
		if !slices.Contains(roles, m.Role) {
			return refused("Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.", m.Role)
		}
		if m.Role == "tool" {
			before, again := answered[m.ToolCallID]
			switch {
			case !called:
				return "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
			case again:
				return refused("Invalid parameter: Duplicate value for 'tool_call_id' of '%s', in messages[%d] and messages[%d].", m.ToolCallID, before, i)
			case !slices.Contains(open, m.ToolCallID):
				return refused("Invalid parameter: 'tool_call_id' of '%s' not found in 'tool_calls' of previous message.", m.ToolCallID)
			}
			answered[m.ToolCallID] = i
			open = slices.DeleteFunc(open, func(id string) bool { return id == m.ToolCallID })
			continue
		}
		if len(open) > 0 {
			break
		}
		called = len(m.ToolCalls) > 0
		clear(answered)
		for _, c := range m.ToolCalls {
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		return refused("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "+
			"The following tool_call_ids did not have response messages: %s", strings.Join(open, ", "))
	}
	return ""
}

// refusal checks that each call has its output somewhere after it. This API does not demand the
// next place for it.
//
//   - https://github.com/openai/codex/issues/620, a call without an output
//   - https://github.com/microsoft/vscode/issues/320060, an output without a call
//   - https://github.com/NousResearch/hermes-agent/issues/111231, two outputs
//   - https://github.com/MacPaw/OpenAI/issues/432, one item twice
func (r responsesRequest) refusal() refusal {
	kinds, answered, items := map[string]string{}, map[string]bool{}, map[string]bool{}
	var calls []string
	for _, item := range r.Input {
		if item.ID != "" && items[item.ID] {
			return refused("Duplicate item found with id %s. Remove duplicate items from your input and try again.", item.ID)
		}
		items[item.ID] = true
		kind, isOutput := strings.CutSuffix(item.Type, "_output")
		kind = strings.ReplaceAll(strings.TrimSuffix(kind, "_call"), "_", " ") + " call" // "function call", "custom tool call"
		switch {
		case item.Role != "" && !slices.Contains([]string{"assistant", "system", "developer", "user"}, item.Role):
			return refused("Invalid value: '%s'. Supported values are: 'assistant', 'system', 'developer', and 'user'.", item.Role)
		case item.CallID == "":
		case !isOutput:
			kinds[item.CallID] = kind
			calls = append(calls, item.CallID)
		case kinds[item.CallID] != kind:
			return refused("No tool call found for %s output with call_id %s.", kind, item.CallID)
		case answered[item.CallID]:
			return refused("Duplicate %s for call_id '%s'. Each function_call must have exactly one matching function_call_output", item.Type, item.CallID)
		default:
			answered[item.CallID] = true
		}
	}
	for _, id := range calls {
		if !answered[id] {
			return refused("No tool output found for %s %s.", kinds[id], id)
		}
	}
	return ""
}

// refusal checks the turns. The API pairs calls and responses by their number and not by their IDs,
// which are optional.
//
//   - https://github.com/google-gemini/gemini-cli/issues/17208, not as many responses as calls
//   - https://github.com/google-gemini/gemini-cli/issues/11814, a call at the beginning
//   - https://github.com/langchain-ai/langchain/issues/27799, responses without calls before them
func (r geminiRequest) refusal() refusal {
	if len(r.Contents) == 0 {
		return "* GenerateContentRequest.contents: contents is not specified\n"
	}
	calls := 0 // of the turn before
	role := ""
	for i, c := range r.Contents {
		asked, answered := 0, 0
		for _, p := range c.Parts {
			if p.FunctionCall != nil {
				asked++
			}
			if p.FunctionResponse != nil {
				answered++
			}
		}
		switch {
		case !slices.Contains([]string{"", "user", "model", "function"}, c.Role):
			return "Please use a valid role: user, model."
		case len(c.Parts) == 0:
			return refused("* GenerateContentRequest.contents[%d].parts: contents.parts must not be empty.\n", i)
		case calls == 0 && answered > 0:
			return "Please ensure that function response turn comes immediately after a function call turn."
		case calls != answered:
			return "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn."
		case asked > 0 && role != "user" && role != "function":
			return "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
		}
		calls, role = asked, c.Role
	}
	return ""
}
