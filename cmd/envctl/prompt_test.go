package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A question shows a change as a diff, with the path in the workspace, and all other input of
// the tool.
func TestAQuestionShowsTheChange(t *testing.T) {
	const where = "WORKSPACE/sub/f.txt"
	before := "old line\n"
	change := []runnerscripts.ToolCallContent{{Type: "diff", Path: where, OldText: &before, NewText: "new line\n"}}
	for name, tt := range map[string]struct {
		kind  runnerscripts.ToolKind
		input string
		want  string
	}{
		"change": {runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/f.txt","old_string":"old line\n","new_string":"new line\n"}`, ""},
		"more fields": {
			runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/f.txt","old_string":"old line\n","new_string":"new line\n","replace_all":true,"command":"new line\n"}`,
			mark + "replace_all: true\n" + mark + "command: new line\n" + mark + "  \n",
		},
		"another text": {
			runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/../f.txt","content":"curl | sh"}`,
			mark + "content: curl | sh\n",
		},
		"no change": {runnerscripts.ToolEdit, `null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, question := asked(t, runnerscripts.ToolCall{
				Title: "Edit " + where, Kind: tt.kind, RawInput: json.RawMessage(tt.input), Content: change,
			}, allowOrReject()...)
			want := mark + "Edit sub/f.txt\n" + mark + "in sub/f.txt\n" + mark + "- old line\n" + mark + "+ new line\n"
			if !strings.HasPrefix(question, want) || !strings.Contains(question, tt.want) {
				t.Errorf("the question is\n%s\nwant\n%s\nand\n%s", question, want, tt.want)
			}
			if strings.Contains(question, "/workspace/sub/f.txt") {
				t.Errorf("the folder of the sandbox is shown:\n%s", question)
			}
			if name == "another text" && !strings.Contains(question, "/sub/../f.txt") {
				t.Errorf("another path is not shown:\n%s", question)
			}
			s.answer("n")
		})
	}
}

// A command is shown exactly as it is executed.
func TestACommandIsShownWithItsPaths(t *testing.T) {
	s, question := asked(t, runnerscripts.ToolCall{
		Title: "WORKSPACE/run.sh", Kind: runnerscripts.ToolExecute, RawInput: inputOf(t, "WORKSPACE/run.sh"),
		Locations: []runnerscripts.Location{{Path: "WORKSPACE/run.sh"}},
	}, allowOrReject()...)
	if strings.Contains(question, mark+"run.sh") || !strings.Contains(strings.ReplaceAll(question, "\n"+mark+"  ", ""), "/workspace/run.sh") {
		t.Errorf("the question is\n%s", question)
	}
	s.answer("n")
}

// Enter rejects, and the question says so.
func TestEnterRejects(t *testing.T) {
	options := append([]runnerscripts.PermissionOption{{OptionID: "always", Name: "Always", Kind: runnerscripts.AllowAlways}}, allowOrReject()...)
	s, question := asked(t, runnerscripts.ToolCall{Title: "rm -rf /"}, options...)
	if !strings.Contains(question, "\nnumber, y, n, Enter = 3 (reject once), or what") {
		t.Errorf("the meaning of Enter is not told:\n%s", question)
	}
	if chosen := s.answer(""); !strings.Contains(chosen, `"no"`) {
		t.Errorf("chosen: %s", chosen)
	}
}

// After an invalid answer the question stays, and only its last line is shown again.
func TestAfterAWrongAnswerOnlyTheLastLineComesAgain(t *testing.T) {
	s, _ := asked(t, runnerscripts.ToolCall{Title: "rm -rf /"}, allowOrReject()...)
	s.typeIn("q\r")
	s.wait("is no answer to this\r\n")
	if again := s.until("instead: "); again != "number, y, n, Enter = 2 (reject once), or what the agent should do " {
		t.Errorf("it comes again as\n%s", again)
	}
	if chosen := s.answer("y"); !strings.Contains(chosen, `"yes"`) {
		t.Errorf("chosen: %s", chosen)
	}
}
