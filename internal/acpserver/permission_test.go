package acpserver

import (
	"errors"
	"testing"

	"github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/permission"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnOptionIsNamedByItsEffect(t *testing.T) {
	for _, tt := range []struct {
		kind       rs.PermissionKind
		name, want string // empty want: not offered
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

// An agent chooses the IDs of its options, and may give the same one to two of them.
func TestAnAnswerAllowsOnlyWhatTheUserHasSeen(t *testing.T) {
	option := func(id string, kind rs.PermissionKind) rs.PermissionOption {
		return rs.PermissionOption{OptionID: id, Kind: kind}
	}
	allow, reject := option("x", rs.AllowAlways), option("no", rs.RejectOnce)
	selected := func(id string) acp.RequestPermissionOutcome {
		return acp.RequestPermissionOutcome{Selected: &acp.RequestPermissionOutcomeSelected{OptionId: acp.PermissionOptionId(id)}}
	}
	dismissed := acp.RequestPermissionOutcome{Cancelled: &acp.RequestPermissionOutcomeCancelled{}}
	for name, tt := range map[string]struct {
		options []rs.PermissionOption
		outcome acp.RequestPermissionOutcome
		err     error
		want    rs.PermissionDecision // without its message
	}{
		"allowed":        {[]rs.PermissionOption{allow, reject}, selected("x"), nil, rs.PermissionDecision{OptionID: "x", Kind: rs.AllowAlways}},
		"rejected":       {[]rs.PermissionOption{allow, reject}, selected("no"), nil, rs.PermissionDecision{OptionID: "no", Kind: rs.RejectOnce}},
		"twice":          {[]rs.PermissionOption{allow, option("x", rs.RejectAlways), reject}, selected("x"), nil, rs.PermissionDecision{OptionID: "no", Kind: rs.RejectOnce}},
		"only twice":     {[]rs.PermissionOption{allow, option("x", rs.RejectAlways)}, selected("x"), nil, rs.PermissionDecision{OptionID: "x", Kind: rs.RejectAlways}},
		"of no kind":     {[]rs.PermissionOption{option("odd", "allow"), reject}, selected("odd"), nil, rs.PermissionDecision{OptionID: "no", Kind: rs.RejectOnce}},
		"not offered":    {[]rs.PermissionOption{allow}, selected("y"), nil, rs.PermissionDecision{Kind: rs.RejectOnce}},
		"dismissed":      {[]rs.PermissionOption{allow, option("never", rs.RejectAlways)}, dismissed, nil, rs.PermissionDecision{OptionID: "never", Kind: rs.RejectAlways}},
		"never answered": {[]rs.PermissionOption{allow, reject}, dismissed, errors.New("gone"), rs.PermissionDecision{OptionID: "no", Kind: rs.RejectOnce}},
	} {
		req := rs.PermissionRequest{ID: "p", Options: tt.options}
		got := decision(req, tt.outcome, tt.err)
		if kind, err := permission.Check(req, got); err != nil || kind != tt.want.Kind {
			t.Errorf("%s: it counts as %q, %v", name, kind, err)
		}
		if got.OptionID != tt.want.OptionID || got.Kind != tt.want.Kind || got.Kind.Allows() != (got.Message == "") && name != "rejected" {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	twice := rs.PermissionRequest{Options: []rs.PermissionOption{allow, option("x", rs.RejectAlways)}}
	if kind, err := permission.Check(twice, rs.PermissionDecision{OptionID: "x"}); err == nil {
		t.Errorf("an option of two kinds counts as %q", kind)
	}
}

func TestATitleShowsWhatIsInIt(t *testing.T) {
	teller := newUpdater(&paths{}, nil, new(choices))
	call := rs.ToolCall{ToolCallID: "1", Title: "ls \u202etxt\x1b[2J"}
	const want = `ls <U+202E>txt\x1b[2J`
	if got := teller.question(call); got.Title == nil || *got.Title != want {
		t.Errorf("the question's title is %q", *got.Title)
	}
	if u, ok := teller.toolCall(event(t, rs.TypeToolCall, call)); !ok || u.ToolCall == nil || u.ToolCall.Title != want {
		t.Errorf("the tool call is %+v", u.ToolCall)
	}
}
