package gemini

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
)

func TestEndOfACommandIsReadFromItsResult(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]commandEnd{
		"Output: one\ntwo\nProcess Group PGID: 4":                                                     {output: "one\ntwo"},
		"<untrusted_context>\nOutput: one\nExit Code: 3\nProcess Group PGID: 4\n</untrusted_context>": {output: "one", exit: 3},
		"Output: (empty)\nExit Code: 1\nSignal: 9\nBackground PIDs: 1, 2":                             {exit: 1},
		"Output: Exit Code: 7":       {output: "Exit Code: 7"},
		"Output: a\nExit Code: none": {output: "a"},
	} {
		result, err := json.Marshal([]any{map[string]any{"functionResponse": map[string]any{"response": map[string]string{"output": text}}}})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := endOfCommand(result); !ok || got != want {
			t.Errorf("%q is %+v, %v", text, got, ok)
		}
	}
	for _, result := range []string{`null`, `[]`, `{}`, `[{"functionResponse":{"response":{"output":"Command was cancelled"}}}]`} {
		if got, ok := endOfCommand([]byte(result)); ok {
			t.Errorf("%s is %+v", result, got)
		}
	}
}

// A request names the folder of its command, so that no rule takes ./build of another folder for that of the workspace.
func TestARequestHasTheFolderOfItsCommand(t *testing.T) {
	t.Parallel()
	for remark, want := range map[string]string{
		"[in vendor]":                         `{"command":"./build","dir_path":"vendor"}`,
		"[in vendor] (Build it) [background]": `{"command":"./build","dir_path":"vendor"}`,
		"[in src] x] (Build it)":              `{"command":"./build","dir_path":"~"}`,
		"[in ]":                               `{"command":"./build","dir_path":"~"}`,
		"[current working directory /workspace] ([in vendor])": `{"command":"./build"}`,
		"": `{"command":"./build"}`,
	} {
		raw, err := json.Marshal(map[string]any{
			"toolCallId": shellTool + "__1", "title": "./build", "kind": "execute", "status": "pending",
			"content": []any{map[string]any{"type": "content", "content": map[string]string{"type": "text", "text": remark}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var call runnerscripts.ToolCall
		if err := json.Unmarshal(translateCall(acp.Update{Kind: string(runnerscripts.TypeToolCall), Raw: raw}).Raw, &call); err != nil || string(call.RawInput) != want || len(call.Content) != 0 {
			t.Errorf("%s: %s, %v, %v", remark, call.RawInput, call.Content, err)
		}
	}
}

// A name may have "__", and rules must not take it for a shorter one.
func TestTheNameOfAToolIsFoundInTheIDOfItsCall(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"write_file__write_file_1795280398065_0":         "write_file",
		"mcp_calc__drop__mcp_calc__drop_1795280398065_0": "mcp_calc__drop",
		"mcp_calc__drop__synth_x_1795280398065_0":        "mcp_calc__drop",
		"mcp_calc_add__h7f3":                             "mcp_calc_add",
		"read_many_files-1795280398065-1":                "",
		"__x":                                            "",
		"":                                               "",
	} {
		if got := toolName(id); got != want {
			t.Errorf("%q is a call of %q, want %q", id, got, want)
		}
	}
}
