package main

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// until is like wait, with plain line breaks in the output before text.
func (s *screen) until(text string) string {
	s.t.Helper()
	return strings.ReplaceAll(s.wait(text), "\r\n", "\n")
}

// ends fails the test unless the program ends well.
func (s *screen) ends() {
	s.t.Helper()
	if code := s.end(); code != exitOK {
		s.t.Errorf("exit status %d:\n%s", code, &s.seen)
	}
}

func allowOrReject() []runnerscripts.PermissionOption {
	return []runnerscripts.PermissionOption{
		{OptionID: "yes", Name: "Allow", Kind: runnerscripts.AllowOnce},
		{OptionID: "no", Name: "Reject", Kind: runnerscripts.RejectOnce},
	}
}

const secondQuestion = "go test\nAllow?\n  │ ls\n  1  allow once\n  │ the agent calls it \"Allow\"\n\x1b[2J\r  2\nnumber, y, n, or what the agent should do instead: "

// ours matches the rows of a question that only envctl itself may print.
var ours = regexp.MustCompile(`(?m)^(Allow\?|  \d+  |number,|  \[)`)

func TestAQuestionCannotBeImitatedByItsText(t *testing.T) {
	wide := strings.Repeat("x", 99) + secondQuestion + strings.Repeat("日本", 60) + "Allow?"
	options := allowOrReject()
	options[1].Name = "No\n  3  allow"
	var requests []request
	for _, call := range []runnerscripts.ToolCall{
		{Title: strings.ReplaceAll(secondQuestion, "instead: ", "instead. ")},
		{Title: strings.ReplaceAll(wide, "instead: ", "instead. ")},
		{Title: "t", RawInput: inputOf(t, strings.ReplaceAll(wide, "instead: ", "instead. "))},
		{Title: "t", RawInput: json.RawMessage(`["` + strings.Repeat("x", 96) + `Allow?"]`)},
		{Title: "t", RawInput: json.RawMessage(`{"` + strings.Repeat(" ", 90) + `Allow?":1}`)},
		{Title: "t", Content: []runnerscripts.ToolCallContent{
			{Type: "content", Content: &runnerscripts.Content{Type: "text", Text: strings.ReplaceAll(secondQuestion, "instead: ", "instead. ")}},
			{Type: "diff", Path: "a\nAllow?", NewText: "b\rAllow?\n  1  x"},
		}},
	} {
		requests = append(requests, request{Call: call, Options: options})
	}
	s := asked(t, requests...)
	for range requests {
		question := s.question()
		if found := ours.FindAllString(question, -1); !slices.Equal(found, []string{"  1  ", "  2  ", "number,"}) {
			t.Errorf("rows that look like ours, %q:\n%s", found, question)
		}
		for i, row := range strings.Split(question, "\n") {
			if !strings.HasPrefix(row, mark) && !ours.MatchString(row) {
				t.Errorf("row %d is not marked: %q", i, row)
			}
		}
		s.answer("n")
	}
	s.chosen(slices.Repeat([]string{`"no"`}, len(requests))...)
}

// onScreen returns the rows of a terminal, which breaks wider lines. It counts two columns for
// all characters but ASCII, the worst case.
func onScreen(text string, columns int) []string {
	var rows []string
	for line := range strings.SplitSeq(text, "\n") {
		row, used := "", 0
		for _, r := range line {
			wide := 1
			if r >= utf8.RuneSelf && r != '│' {
				wide = 2
			}
			if used+wide > columns {
				rows, row, used = append(rows, row), "", 0
			}
			row, used = row+string(r), used+wide
		}
		rows = append(rows, row)
	}
	return rows
}

func TestTheNameOfAnOptionCannotImitateAnotherOne(t *testing.T) {
	for _, begin := range []string{strings.Repeat("x", 30), strings.Repeat("日", 15), strings.Repeat("日", 50)} {
		name := begin + "  2  allow once"
		name += strings.Repeat(" y", 50)[:100-utf8.RuneCountInString(name)]
		var errOut bytes.Buffer
		show := newApp(nil, io.Discard, &errOut).newPrinter(false)
		show.question(permissionPrompt(runnerscripts.PermissionRequest{
			ToolCall: runnerscripts.ToolCall{Title: "t"},
			Options:  []runnerscripts.PermissionOption{{OptionID: "a", Name: name, Kind: runnerscripts.AllowOnce}},
		}, "", false))
		show.answered()
		rows := onScreen(errOut.String(), 80) // the width of an output that is no terminal
		for i, row := range rows {
			if !strings.HasPrefix(row, mark) && !ours.MatchString(row) {
				t.Errorf("row %d is not marked: %q", i, row)
			}
		}
		if found := ours.FindAllString(strings.Join(rows, "\n"), -1); !slices.Equal(found, []string{"Allow?", "  1  ", "number,"}) {
			t.Errorf("rows that look like ours, %q:\n%s", found, &errOut)
		}
	}
}

func TestForeignTextIsMarkedOnANarrowTerminal(t *testing.T) {
	for columns := 7; columns < 40; columns++ {
		for _, field := range []bool{false, true} {
			q := &questionText{width: columns - utf8.RuneCountInString(mark) - 1, most: mostCommandRows}
			q.foreign("xx日本\t"+strings.Repeat("Allow? 日", 3), field)
			var text strings.Builder
			for _, s := range q.spans {
				text.WriteString(s.Text)
			}
			for _, row := range onScreen(text.String()[1:], columns) {
				if !strings.HasPrefix(row, mark) {
					t.Errorf("at %d columns a row is not marked: %q", columns, row)
				}
			}
		}
	}
}

// inputOf returns the input of a tool that executes a command.
func inputOf(t *testing.T, command string) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestNothingHidesInAQuestion(t *testing.T) {
	long := "begins" + strings.Repeat("x", 50_000) + "ends"
	cases := []struct {
		name string
		call runnerscripts.ToolCall
		want []string
	}{
		{"blanks", runnerscripts.ToolCall{Title: "t", RawInput: inputOf(t, "ls"+strings.Repeat(" ", 1990)+"; curl | sh")}, []string{"ls <1990 blanks> ; curl | sh"}},
		{"other blanks", runnerscripts.ToolCall{Title: "ls" + strings.Repeat("\u3000\u2800\n", 100) + "; curl | sh"}, []string{"ls <300 blanks> ; curl | sh"}},
		{"direction", runnerscripts.ToolCall{Title: "ls \u202etxt.exe"}, []string{"ls <U+202E>txt.exe"}},
		{"the end", runnerscripts.ToolCall{Title: "t", RawInput: inputOf(t, long)}, []string{"command: begins", "ends\n", " bytes in ", " rows are not shown]"}},
		{"a whole command", runnerscripts.ToolCall{Title: "t", Kind: runnerscripts.ToolExecute, RawInput: inputOf(t, strings.Repeat("middle; ", 500))}, []string{"command: middle"}},
		{
			"a later field",
			runnerscripts.ToolCall{Title: "t", RawInput: json.RawMessage(`{"a":"` + long + `","command":"curl | sh","z":"` + long + `"}`)},
			[]string{"command: curl | sh"},
		},
		{"many fields", runnerscripts.ToolCall{Title: "t", RawInput: json.RawMessage(`{` + strings.Repeat(`"a":1,`, 30) + `"command":"curl"}`)}, []string{"bytes of fields are not shown]"}},
	}
	var requests []request
	for _, tt := range cases {
		requests = append(requests, request{Call: tt.call, Options: allowOrReject()})
	}
	s := asked(t, requests...)
	for _, tt := range cases {
		question := s.question()
		for _, want := range tt.want {
			if !strings.Contains(question, want) {
				t.Errorf("%s: %q is not shown:\n%s", tt.name, want, question)
			}
		}
		if strings.HasPrefix(tt.name, "a whole") && strings.Contains(question, "not shown") {
			t.Errorf("%s: something is not shown:\n%s", tt.name, question)
		}
		s.answer("n")
	}
	s.chosen(slices.Repeat([]string{`"no"`}, len(requests))...)
}

func TestAnOptionIsNamedByItsEffect(t *testing.T) {
	options := []runnerscripts.PermissionOption{
		{OptionID: "a", Name: "Reject (do not run)", Kind: runnerscripts.AllowOnce},
		{OptionID: "b", Name: "Allow", Kind: runnerscripts.RejectOnce},
		{OptionID: "c", Name: "Yes", Kind: "yes"},
	}
	answers := []string{"y", "n", "1", "do not"}
	requests := make([]request, len(answers)+1)
	for i := range requests {
		requests[i] = request{Call: runnerscripts.ToolCall{Title: "rm -rf /"}, Options: options}
	}
	s := asked(t, requests...)
	for _, answer := range answers {
		question := s.question()
		for _, row := range []string{
			"  1  allow once\n" + mark + "the agent calls it \"Reject (do not run)\"\n",
			"  2  reject once\n" + mark + "the agent calls it \"Allow\"\n",
			"  3  cannot be chosen: its effect is not known\n" + mark + "the agent calls it \"Yes\"\n",
		} {
			if !strings.Contains(question, row) {
				t.Errorf("%q is missing:\n%s", row, question)
			}
		}
		s.answer(answer)
	}
	s.question()
	s.typeIn("3\r")
	s.wait("3 cannot be chosen")
	s.wait("instead: ")
	s.answer("n")
	s.chosen(`"a"`, `"b"`, `"a"`, `"b"`, `"b"`)
}

func TestAPersonsAnswerIsUnderstood(t *testing.T) {
	option := func(id string, kind runnerscripts.PermissionKind) runnerscripts.PermissionOption {
		return runnerscripts.PermissionOption{OptionID: id, Kind: kind}
	}
	once, always := option("once", runnerscripts.AllowOnce), option("always", runnerscripts.AllowAlways)
	no, never := option("no", runnerscripts.RejectOnce), option("never", runnerscripts.RejectAlways)
	odd, unnamed := option("odd", "allow"), option("", runnerscripts.RejectOnce)
	list := func(o ...runnerscripts.PermissionOption) []runnerscripts.PermissionOption { return o }
	for _, tt := range []struct {
		options []runnerscripts.PermissionOption
		line    string
		want    runnerscripts.PermissionDecision // zero if the line is invalid
	}{
		{list(once, no), "y", runnerscripts.PermissionDecision{OptionID: "once", Kind: once.Kind}},
		{list(once, no), "allow", runnerscripts.PermissionDecision{OptionID: "once", Kind: once.Kind}},
		{list(once, no), "deny", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind}},
		{list(once, no), "Reject", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind}},
		{options: list(once, no), line: "alow"},
		{list(once, no), "NO", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind}},
		{list(once, no), "2", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind}},
		{list(once, no), "use tabs", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind, Message: "use tabs"}},
		{list(once, never), "use tabs", runnerscripts.PermissionDecision{OptionID: "never", Kind: never.Kind, Message: "use tabs"}},
		{list(once), "use tabs", runnerscripts.PermissionDecision{Kind: no.Kind, Message: "use tabs"}},
		{nil, "y", runnerscripts.PermissionDecision{Kind: once.Kind}},
		{nil, "n", runnerscripts.PermissionDecision{Kind: no.Kind}},
		{list(unnamed), "1", runnerscripts.PermissionDecision{Kind: no.Kind}},
		{list(always, once, never, no), "", runnerscripts.PermissionDecision{OptionID: "no", Kind: no.Kind}},
		{list(once, never), "", runnerscripts.PermissionDecision{OptionID: "never", Kind: never.Kind}},
		{line: "", want: runnerscripts.PermissionDecision{Kind: no.Kind}},
		{line: "3"},
		{line: "yy"},
		{options: list(once, no), line: "0"},
		{options: list(once, no), line: "3"},
		{options: list(once, once, no), line: "y"},
		{options: list(always, no), line: "y"},
		{options: list(odd, no), line: "yes"},
		{options: list(once, no, no), line: "n"},
		{options: list(once, never), line: "n"},
		{options: list(once, odd), line: "2"},
	} {
		d, err := choose(tt.options, tt.line)
		if err == nil != (tt.want.Kind != "") || d.OptionID != tt.want.OptionID || d.Kind != tt.want.Kind || d.Message != tt.want.Message {
			t.Errorf("%q to %v is understood as %+v, %v", tt.line, tt.options, d, err)
		}
	}
	many := make([]runnerscripts.PermissionOption, 100)
	for i := range many {
		many[i] = once
	}
	if d, err := choose(many, "50"); err == nil {
		t.Errorf("an option that is not shown is chosen: %+v", d)
	}
}

// The agent's output after a question could look like another question. It is not shown below
// the question.
func TestNothingIsShownBelowAQuestion(t *testing.T) {
	var out, errOut bytes.Buffer
	show := newApp(nil, &out, &errOut).newPrinter(false)
	say := func(text string) {
		t.Helper()
		payload, err := json.Marshal(runnerscripts.ContentChunk{BlockID: "1", Content: runnerscripts.Content{Type: "text", Text: text}})
		if err != nil {
			t.Fatal(err)
		}
		if err := show.event(runnerscripts.Event{Type: runnerscripts.TypeAgentMessage, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	show.question(permissionPrompt(runnerscripts.PermissionRequest{ToolCall: runnerscripts.ToolCall{Title: "rm -rf /"}, Options: allowOrReject()}, "", false))
	say("Allow?\n  │ ls\n")
	if out.Len() > 0 {
		t.Errorf("below the question:\n%s", &out)
	}
	show.answered()
	if out.String() != "Allow?\n  │ ls\n" {
		t.Errorf("after the answer: %q", &out)
	}
	// If too many events are held back, they are printed, and the question is shown again.
	errOut.Reset()
	show.question(permissionPrompt(runnerscripts.PermissionRequest{ToolCall: runnerscripts.ToolCall{Title: "rm -rf /"}}, "", false))
	for range mostHeld {
		say("x")
	}
	if n := strings.Count(errOut.String(), "Allow?"); n != 2 || !strings.HasSuffix(errOut.String(), "instead: ") {
		t.Errorf("the question is shown %d times:\n%s", n, &errOut)
	}
	if err := show.finish(); err != nil {
		t.Error(err)
	}
}
