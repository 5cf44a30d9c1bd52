package codex

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

func TestScriptOfACommandIsFoundInItsShell(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		`/bin/bash -lc 'touch asked'`:             `touch asked`,
		`bash -lc ls`:                             `ls`,
		`/bin/zsh -c "echo \"a b\" \$HOME \n"`:    `echo "a b" $HOME \n`,
		`/bin/bash -lc 'it'\''s'`:                 `it's`,
		`/bin/bash -lc 'an open quote`:            `/bin/bash -lc 'an open quote`,
		`git status`:                              `git status`,
		`/bin/bash -lc 'a' b`:                     `/bin/bash -lc 'a' b`,
		`python3 -c 'print(1)'`:                   `python3 -c 'print(1)'`,
		"/bin/bash -lc 'one\ntwo'":                "one\ntwo",
		`/bin/bash -lc ` + `"` + "`x`" + ` \\ '"`: "`x`" + ` \ '`,
		`./bash -lc ls`:                           `./bash -lc ls`,
		`/workspace/bash -lc ls`:                  `/workspace/bash -lc ls`,
		`/bin/../tmp/bash -lc ls`:                 `/bin/../tmp/bash -lc ls`,
		``:                                        ``,
	} {
		if got := unwrap(command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

func TestHunksShowTheLinesBeforeAndAfter(t *testing.T) {
	t.Parallel()
	got := hunks("@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n@@ -10 +12,2 @@\n-x\n+y\n+z\n\\ No newline at end of file\n")
	want := []hunk{{1, "a\nb\nc\n", "a\nB\nc\n"}, {12, "x\n", "y\nz\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("hunks %+v", got)
	}
	for _, odd := range []string{"", "no hunk", "+x\n", "@@", "@@\n\n", "@@\n+only added\n"} {
		_ = hunks(odd) // none may panic
	}
	if got := hunks("@@\n+only added\n"); len(got) != 1 || got[0] != (hunk{0, "", "only added\n"}) {
		t.Errorf("without line numbers: %+v", got)
	}
}

func TestChangesOfAPatchAreRead(t *testing.T) {
	t.Parallel()
	got := patchChanges("*** Begin Patch\n*** Add File: a.txt\n+one\n+\n*** Update File: /abs/b.txt\n*** Move to: c.txt\n@@\n x\n-y\n+z\n"+
		"*** Delete File: d.txt\n*** End Patch\n", "/w")
	want := []change{
		{"/w/a.txt", changeKind{Type: "add"}, "one\n\n"},
		{"/abs/b.txt", changeKind{"update", "/w/c.txt"}, "@@\n x\n-y\n+z\n"},
		{"/w/d.txt", changeKind{Type: "delete"}, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes %+v", got)
	}
	if got := patchChanges("no patch", "/w"); got != nil {
		t.Errorf("of no patch: %+v", got)
	}
}

func TestChangesAreToldByWhatTheyDo(t *testing.T) {
	t.Parallel()
	const w = "/w/"
	for title, tt := range map[string]struct {
		changes []change
		kind    runnerscripts.ToolKind
	}{
		"Write a.txt":         {[]change{{w + "a.txt", changeKind{Type: "add"}, "x"}}, runnerscripts.ToolEdit},
		"Edit a.txt":          {[]change{{w + "a.txt", changeKind{Type: "update"}, ""}}, runnerscripts.ToolEdit},
		"Delete a.txt":        {[]change{{w + "a.txt", changeKind{Type: "delete"}, "x"}}, runnerscripts.ToolDelete},
		"Move a.txt to b.txt": {[]change{{w + "a.txt", changeKind{"update", w + "b.txt"}, ""}}, runnerscripts.ToolMove},
		"Change 2 files":      {[]change{{Path: "a"}, {Path: "b"}}, runnerscripts.ToolEdit},
	} {
		call := item{Type: itemFiles, ID: "c", Changes: tt.changes}.toolCall()
		if call.Title != title || call.Kind != tt.kind {
			t.Errorf("%q, %s; want %q", call.Title, call.Kind, title)
		}
	}
}

func TestKindOfACommandIsWhatItDoes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		actions []action
		kind    runnerscripts.ToolKind
		path    string
	}{
		{nil, runnerscripts.ToolExecute, ""},
		{[]action{{Type: "unknown"}}, runnerscripts.ToolExecute, ""},
		{[]action{{Type: "read", Path: "a.txt"}}, runnerscripts.ToolRead, "/w/a.txt"},
		{[]action{{Type: "read", Path: "/x/a.txt"}}, runnerscripts.ToolRead, "/x/a.txt"},
		{[]action{{Type: "search"}}, runnerscripts.ToolSearch, ""},
		{[]action{{Type: "read"}, {Type: "unknown"}}, runnerscripts.ToolExecute, ""},
	} {
		kind, locations := commandKind(tt.actions, "/w")
		if kind != tt.kind || (tt.path != "") != (len(locations) == 1) || tt.path != "" && locations[0].Path != tt.path {
			t.Errorf("%+v: %s %+v", tt.actions, kind, locations)
		}
	}
}

func TestThreadIsInTheNameOfItsRollout(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a/rollout-2026-01-02T03-04-05-" + fakeThread + ".jsonl": fakeThread,
		"rollout-" + fakeThread + ".jsonl.zst":                   "",
		fakeThread + ".jsonl":                                    "",
		"rollout-x.jsonl":                                        "",
		"rollout-.jsonl":                                         "",
	} {
		if got := threadOf(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestFailuresHaveAKindAStatusAndAdvice(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    turnError
		status int
		says   string
	}{
		"no key":        {turnError{Message: "m", Info: []byte(`"unauthorized"`)}, 401, envKey},
		"limits":        {turnError{Message: "m", Info: []byte(`"usageLimitExceeded"`)}, 429, "later"},
		"overloaded":    {turnError{Message: "m", Info: []byte(`"serverOverloaded"`)}, 0, "later"},
		"with a status": {turnError{Message: "m", Info: []byte(`{"httpConnectionFailed":{"httpStatusCode":503}}`)}, 503, "later"},
		"a bad request": {turnError{Message: `{"error":{"message":"m"}}`, Info: []byte(`"other"`)}, 400, "refused the request"},
		"failed":        {turnError{Message: "m", Info: []byte(`{"httpConnectionFailed":{"httpStatusCode":500}}`)}, 500, "has failed"},
		"unreachable":   {turnError{Message: "m", Info: []byte(`{"httpConnectionFailed":{"httpStatusCode":null}}`)}, 0, "can be reached"},
		"cut":           {turnError{Message: "m", Info: []byte(`{"responseStreamDisconnected":{"httpStatusCode":null}}`)}, 0, "was cut"},
		"too long":      {turnError{Message: "m", Info: []byte(`"contextWindowExceeded"`)}, 0, "new session"},
		"no such model": {turnError{Message: "m", Info: []byte(`"modelNotFound"`)}, 0, "agent.model"},
		"of a new kind": {turnError{Message: "m", Info: []byte(`[1]`), Details: "more"}, 0, "m: more"},
		"null":          {turnError{Message: "m", Info: []byte(`null`)}, 0, "m"},
	} {
		f, ok := apiFailure(tt.err).(*runnerscripts.ScriptFailure) //nolint:errorlint // it is no wrapped error
		if !ok || f.HTTPStatus != tt.status || !strings.Contains(f.Message, tt.says) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, err := outcome(turn{Status: "ofANewVersion"}, false, false); !agenttest.HasCode(err, runnerscripts.FailAPI) {
		t.Errorf("an unknown end: %v", err)
	}
}

func TestMeterCountsWhatIsNew(t *testing.T) {
	t.Parallel()
	var m meter
	count := func(thread string, in, cached, out int64) runnerscripts.Usage {
		n := usageNote{note: note{ThreadID: thread}}
		n.TokenUsage.Total = tokens{InputTokens: in, CachedTokens: cached, OutputTokens: out}
		return m.add(n)
	}
	if got := count("a", 100, 40, 5); got != (runnerscripts.Usage{InputTokens: 60, CacheReadTokens: 40, OutputTokens: 5}) {
		t.Errorf("first %+v", got)
	}
	if got := count("b", 10, 0, 1); got != (runnerscripts.Usage{InputTokens: 10, OutputTokens: 1}) {
		t.Errorf("of another thread %+v", got)
	}
	if got := count("a", 150, 80, 7); got != (runnerscripts.Usage{InputTokens: 10, CacheReadTokens: 40, OutputTokens: 2}) {
		t.Errorf("second %+v", got)
	}
	if got := count("a", 150, 80, 7); got != (runnerscripts.Usage{}) {
		t.Errorf("the same again %+v", got)
	}
}

// The tool call that starts a subagent may end after the subagent has started.
func TestNotificationsOfASubagentWaitForItsToolCall(t *testing.T) {
	t.Parallel()
	out := agenttest.NewRecorder()
	c := offline(out)
	for _, line := range []string{
		`{"method":"turn/started","params":{"threadId":"sub","turn":{"id":"s1"}}}`,
		`{"method":"item/completed","params":{"threadId":"sub","item":{"type":"agentMessage","id":"m1","text":"hello"}}}`,
		`{"method":"item/completed","params":{"threadId":"main","item":{"type":"collabAgentToolCall","id":"call","tool":"spawnAgent","status":"completed","receiverThreadIds":["sub"],"prompt":"do it"}}}`,
		`{"method":"turn/completed","params":{"threadId":"sub","turn":{"id":"s1","status":"completed","durationMs":7}}}`,
	} {
		c.handle(&jsonrpc.Peer{}, []byte(line))
	}
	subs := agenttest.Fold(t, out.All()).Subagents
	if len(subs) != 1 || subs[0].ToolCallID != "call" || subs[0].Output != "hello" || len(subs[0].Blocks) != 1 {
		t.Errorf("subagents: %s", agenttest.Show(t, subs))
	}
	if len(c.working) != 0 || len(c.queued) != 0 {
		t.Errorf("left: %v, %v", c.working, c.queued)
	}
}

func TestInvalidLinesNeverEndTheRunner(t *testing.T) {
	t.Parallel()
	out := agenttest.NewRecorder()
	c := offline(out)
	for _, line := range []string{
		`null`, `{}`, `[]`, `"x"`, `{"id":null}`, `{"id":7,"result":null}`, `{"method":"item/completed"}`,
		`{"method":"item/started","params":null}`, `{"method":"turn/completed","params":{}}`,
		`{"method":"item/completed","params":{"threadId":"main","item":null}}`,
		`{"method":"item/completed","params":{"threadId":"main","item":{"type":"fileChange","changes":[{}]}}}`,
		`{"method":"item/completed","params":{"threadId":"main","item":{"type":"mcpToolCall","result":[],"error":7}}}`,
		`{"method":"item/agentMessage/delta","params":{"threadId":"main","delta":"x"}}`,
		`{"method":"turn/completed","params":{"threadId":"main","turn":{}}}`,
		`{"method":"thread/tokenUsage/updated","params":{"threadId":"main","tokenUsage":null}}`,
		`{"method":"serverRequest/resolved","params":{}}`, "\xff",
	} {
		c.handle(&jsonrpc.Peer{}, []byte(line))
	}
	for _, e := range out.All() {
		if e.Type == "" || e.Time.After(time.Now()) {
			t.Errorf("event %+v", e)
		}
	}
	if n := len(agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)); n < 3 {
		t.Errorf("%d lines are reported:\n%s", n, agenttest.Describe(out.All()))
	}
}
