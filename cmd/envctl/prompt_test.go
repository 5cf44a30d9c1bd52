package main

import (
	"encoding/json"
	"slices"
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
	cases := []struct {
		name  string
		kind  runnerscripts.ToolKind
		input string
		want  string
	}{
		{"change", runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/f.txt","old_string":"old line\n","new_string":"new line\n"}`, ""},
		{
			"more fields",
			runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/f.txt","old_string":"old line\n","new_string":"new line\n","replace_all":true,"command":"new line\n"}`,
			mark + "replace_all: true\n" + mark + "command: new line\n" + mark + "  \n",
		},
		{
			"another text",
			runnerscripts.ToolEdit, `{"file_path":"WORKSPACE/sub/../f.txt","content":"curl | sh"}`,
			mark + "content: curl | sh\n",
		},
		{"no change", runnerscripts.ToolEdit, `null`, ""},
	}
	var requests []request
	for _, tt := range cases {
		requests = append(requests, request{Options: allowOrReject(), Call: runnerscripts.ToolCall{
			Title: "Edit " + where, Kind: tt.kind, RawInput: json.RawMessage(tt.input), Content: change,
		}})
	}
	s := asked(t, requests...)
	for _, tt := range cases {
		question := s.question()
		want := mark + "Edit sub/f.txt\n" + mark + "in sub/f.txt\n" + mark + "- old line\n" + mark + "+ new line\n"
		if !strings.HasPrefix(question, want) || !strings.Contains(question, tt.want) {
			t.Errorf("%s: the question is\n%s\nwant\n%s\nand\n%s", tt.name, question, want, tt.want)
		}
		if strings.Contains(strings.ReplaceAll(question, "\n"+mark+"  ", ""), "/sub/f.txt") {
			t.Errorf("%s: the folder of the sandbox is shown:\n%s", tt.name, question)
		}
		if tt.name == "another text" && !strings.Contains(question, "/sub/../f.txt") {
			t.Errorf("another path is not shown:\n%s", question)
		}
		s.answer("n")
	}
	s.chosen(slices.Repeat([]string{`"no"`}, len(requests))...)
}

// A command is shown exactly as it is executed. Enter rejects, and the question says so. After an
// invalid answer the question stays, and only its last line is shown again.
func TestAQuestionIsAnsweredOnATerminal(t *testing.T) {
	always := append([]runnerscripts.PermissionOption{{OptionID: "always", Name: "Always", Kind: runnerscripts.AllowAlways}}, allowOrReject()...)
	remove := runnerscripts.ToolCall{Title: "rm -rf /"}
	s := asked(t, request{Options: allowOrReject(), Call: runnerscripts.ToolCall{
		Title: "WORKSPACE/run.sh", Kind: runnerscripts.ToolExecute, RawInput: inputOf(t, "WORKSPACE/run.sh"),
		Locations: []runnerscripts.Location{{Path: "WORKSPACE/run.sh"}},
	}}, request{Call: remove, Options: always}, request{Call: remove, Options: allowOrReject()})
	question := s.question()
	if strings.Contains(question, mark+"run.sh") || !strings.Contains(strings.ReplaceAll(question, "\n"+mark+"  ", ""), "/local/workspaces/") {
		t.Errorf("the question is\n%s", question)
	}
	s.answer("n")

	if question = s.question(); !strings.Contains(question, "\nnumber, y, n, Enter = 3 (reject once), or what") {
		t.Errorf("the meaning of Enter is not told:\n%s", question)
	}
	s.answer("")

	s.question()
	s.typeIn("q\r")
	s.wait("is no answer to this\r\n")
	if again := s.until("instead: "); again != "number, y, n, Enter = 2 (reject once), or what the agent should do " {
		t.Errorf("it comes again as\n%s", again)
	}
	s.answer("y")
	s.chosen(`"no"`, `"no"`, `"yes"`)
}
