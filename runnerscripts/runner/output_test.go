package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

var anyObject = json.RawMessage(`{"type":"object"}`)

// askFor starts a conversation whose first prompt has a schema.
func askFor(t *testing.T, s *sandbox) *process {
	t.Helper()
	p := start(t, rs.ExecuteQuery)
	p.send(rs.QueryRequest{Session: s.session(), Prompt: "go", PromptID: "first", OutputSchema: anyObject, InterruptGraceMS: neverMS})
	return p
}

// offered waits for the next output and returns its ID.
func offered(p *process) string {
	p.t.Helper()
	return payload[rs.QueryOutput](p.t, p.until(rs.TypeQueryOutput)).ID
}

func TestAnOutputWaitsForTheHost(t *testing.T) {
	p := askFor(t, newSandbox(t, `[{"text":"one"}]`, `[{"text":"two"}]`, `[{"text":"{{history}}"}]`))
	first := offered(p)
	p.send(rs.Control{Type: rs.ControlOutput, ID: first, Text: "once more"}, rs.Control{Type: rs.ControlOutput, ID: first})
	p.send(rs.Control{Type: rs.ControlOutput, ID: offered(p)})
	done := payload[rs.QueryCompleted](t, p.until(rs.TypeQueryCompleted))
	if done.StopReason != rs.StopEndTurn || done.Usage.OutputTokens != 2 || said(p.seen) != "onetwo" || len(of(p.seen, rs.TypeQueryStarted)) != 1 {
		t.Errorf("%+v after %s", done, types(p.seen))
	}
	if started := payload[rs.QueryStarted](t, of(p.seen, rs.TypeQueryStarted)[0]); started.Prompt != "go" || string(started.OutputSchema) != string(anyObject) {
		t.Errorf("it began with %+v", started)
	}
	// The next prompt is free again.
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "what was asked?"})
	history := strings.TrimPrefix(said(p.finish()), "onetwo")
	if want := "go" + inWords + string(anyObject) + "\nonce more" + inWords + string(anyObject); history != want {
		t.Errorf("the agent got %q, want %q", history, want)
	}
	if n := len(of(p.seen, rs.TypeQueryOutput)); n != 2 {
		t.Errorf("%d outputs were offered", n)
	}
}

// An agent that can be bound may ignore the schema, for example because its model's API does.
func TestABoundAgentWhoseOutputDoesNotMatchIsAskedInWords(t *testing.T) {
	s := newSandbox(t)
	dir := t.TempDir()
	program, prompts := filepath.Join(dir, "program"), filepath.Join(dir, "prompts")
	agenttest.WriteFile(t, program, `read -r line
id=${line#*'"request_id":"'}
id=${id%%'"'*}
printf '{"type":"control_response","response":{"subtype":"success","request_id":"%s","response":{}}}\n' "$id"
while read -r line; do
	printf '%s\n' "$line" >>'`+prompts+`'
	echo '{"type":"result","subtype":"success","is_error":false,"result":"","modelUsage":{}}'
done`)
	s.agent = rs.Agent{Name: "claude", Command: []string{"/bin/sh", program}}
	p := askFor(t, s)
	p.send(rs.Control{Type: rs.ControlOutput, ID: offered(p), Text: "once more"})
	p.send(rs.Control{Type: rs.ControlOutput, ID: offered(p)})
	p.finish()
	got, err := os.ReadFile(prompts)
	if err != nil {
		t.Fatal(err)
	}
	const words = "matches this JSON schema"
	if first, second, _ := strings.Cut(string(got), "\n"); strings.Contains(first, words) || !strings.Contains(second, "once more") || !strings.Contains(second, words) {
		t.Errorf("the agent got %s", got)
	}
}

// Without input no answer can come: the host checks the output when it reads the end.
func TestAnOutputDoesNotWaitForAHostThatIsGone(t *testing.T) {
	p := askFor(t, newSandbox(t, `[{"text":"one"}]`, `[{"text":"two"}]`))
	offered(p)
	if events := p.finish(); stopOfLast(t, events) != rs.StopEndTurn || said(events) != "one" {
		t.Errorf("events %s", types(events))
	}
}

func TestAnInterruptEndsAQueryWhoseOutputWaits(t *testing.T) {
	p := askFor(t, newSandbox(t, `[{"text":"one"}]`, `[{"text":"two"}]`))
	offered(p)
	p.send(rs.Control{Type: rs.ControlInterrupt, ID: "first"})
	if got := stopOf(t, p); got != rs.StopCancelled {
		t.Errorf("stop reason %s", got)
	}
	p.send(rs.Control{Type: rs.ControlPrompt, Text: "next"})
	if got := said(p.finish()); got != "onetwo" {
		t.Errorf("said %q", got)
	}
}

func TestAShutdownEndsAQueryWhoseOutputWaits(t *testing.T) {
	p := askFor(t, newSandbox(t, `[{"text":"one"}]`))
	offered(p)
	p.send(rs.Control{Type: rs.ControlShutdown})
	p.end(exitOK)
	if stopOfLast(t, p.seen) != rs.StopCancelled {
		t.Errorf("events %s", types(p.seen))
	}
}

// stopOfLast returns the stop reason of the only query.
func stopOfLast(t *testing.T, events []rs.Event) rs.StopReason {
	t.Helper()
	ends := of(events, rs.TypeQueryCompleted)
	if len(ends) != 1 {
		t.Fatalf("events %s", types(events))
	}
	return payload[rs.QueryCompleted](t, ends[0]).StopReason
}
