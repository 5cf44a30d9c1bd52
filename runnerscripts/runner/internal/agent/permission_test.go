package agent_test

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestAPermissionRequestEndsOnce(t *testing.T) {
	out := agenttest.NewRecorder()
	p := agent.Permissions[string]{Out: out}
	ask := func(id string, live func() bool) bool {
		return p.Request(rs.MainConversation, rs.PermissionRequest{ID: id}, "question "+id, live)
	}
	if !ask("b", nil) || !ask("a", nil) || !ask("c", func() bool { return true }) || ask("d", func() bool { return false }) {
		t.Error("the requests that live are not those that are kept")
	}
	refused := errors.New("no such option")
	if _, _, err := p.Answer("a", func(string) (rs.PermissionOption, error) { return rs.PermissionOption{}, refused }); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
	allow := func(string) (rs.PermissionOption, error) { return rs.PermissionOption{Kind: rs.AllowOnce}, nil }
	if q, o, err := p.Answer("a", allow); q != "question a" || o.Kind != rs.AllowOnce || err != nil {
		t.Errorf("answered %q with %v, %v", q, o, err)
	}
	for _, id := range []string{"a", "d"} {
		if _, _, err := p.Answer(id, allow); !agenttest.HasCode(err, rs.FailInvalidRequest) {
			t.Errorf("%s: error %v", id, err)
		}
	}
	if n := len(p.Pending()); n != 2 {
		t.Errorf("%d wait", n)
	}
	p.Withdraw(func(id string, _ string) bool { return id == "c" })
	if list := p.WithdrawAll(); len(list) != 1 || list[0] != "question b" || len(p.WithdrawAll())+len(p.Pending()) > 0 {
		t.Errorf("withdrawn: %q", list)
	}
	var got []string
	for _, r := range agenttest.Payloads[rs.PermissionResolved](t, out.All(), rs.TypePermissionResolved) {
		got = append(got, r.ID+" "+string(r.Kind)+" "+r.Reason)
	}
	want := []string{"a allow_once answered", "c  cancelled", "b  cancelled"}
	if agenttest.Show(t, got) != agenttest.Show(t, want) {
		t.Errorf("resolved: %q", got)
	}
}
