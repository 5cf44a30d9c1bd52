package gemini

import (
	"encoding/json"
	"testing"
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
