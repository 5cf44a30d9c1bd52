package acpserver

import (
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnOptionIsNamedByItsEffect(t *testing.T) {
	for _, tt := range []struct {
		kind       rs.PermissionKind
		name, want string // no want: it is not offered
	}{
		{rs.AllowOnce, "Allow", "Allow once"},
		{rs.AllowOnce, "", "Allow once"},
		{rs.AllowOnce, "Reject (do not run)", `Allow once ("Reject (do not run)")`},
		{rs.AllowAlways, "Allow", "Allow for this session"},
		{rs.RejectOnce, "Allow", `Reject once ("Allow")`},
		{rs.RejectAlways, "No\u202e\n", `Reject for this session ("No<U+202E>\\n")`},
		{"allow", "Allow", ""},
		{"", "Allow", ""},
	} {
		list := options([]rs.PermissionOption{{OptionID: "id", Kind: tt.kind, Name: tt.name}})
		if offered := len(list) == 1; offered != (tt.want != "") || offered && (list[0].Name != tt.want || list[0].OptionId != "id") {
			t.Errorf("%q of kind %q is offered as %+v, want %q", tt.name, tt.kind, list, tt.want)
		}
	}
}

func TestATitleShowsWhatIsInIt(t *testing.T) {
	teller := newTeller(&paths{}, nil, "")
	call := rs.ToolCall{ToolCallID: "1", Title: "ls \u202etxt\x1b[2J"}
	const want = `ls <U+202E>txt\x1b[2J`
	if got := teller.question(call); got.Title == nil || *got.Title != want {
		t.Errorf("the question's title is %q", *got.Title)
	}
	if u, ok := teller.toolCall(event(t, rs.TypeToolCall, call)); !ok || u.ToolCall == nil || u.ToolCall.Title != want {
		t.Errorf("the tool call is %+v", u.ToolCall)
	}
}
