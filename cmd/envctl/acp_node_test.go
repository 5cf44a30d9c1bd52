package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

// nodeReport is the output of testdata/acp/client.mjs.
type nodeReport struct {
	Initialized acp.InitializeResponse
	Session     acp.NewSessionResponse
	Updates     []acp.SessionNotification
	Asked       []acp.RequestPermissionRequest
	Stops       []acp.StopReason
	Errors      []acp.RequestError
	Exit        any
}

// nodeModules returns the folder of the official client.
func nodeModules(t *testing.T) string {
	t.Helper()
	modules, err := filepath.Abs(filepath.Join("..", "..", "e2e", "agents"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(modules, "node_modules", "@agentclientprotocol", "sdk")); err != nil {
		t.Fatal("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the client that this test runs: ", err)
	}
	return modules
}

// officialClient runs the official ACP client as the editor, in a folder.
func officialClient(t *testing.T, dir string, args ...string) (report nodeReport) {
	t.Helper()
	modules := nodeModules(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{"testdata/acp/client.mjs", modules, dir, "envctl", "acp"}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &errOut)
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if errOut.Len() > 0 {
		t.Errorf("it complains:\n%s", &errOut)
	}
	return report
}

func TestTheOfficialClientWorksWithIt(t *testing.T) {
	alone(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := officialClient(t, dir, "--scenario", file(t, "s.json", `{"turns":[
		{"when":"work","steps":[
			{"thought":"Let me see."},{"plan":{"entries":[{"content":"a step"}]}},{"text":"I was told: {{prompt}}"},
			{"write":{"path":"made.txt","content":"x"}},{"run":["cat","made.txt"]}]},
		{"when":"allowed.txt","steps":[{"ask":{"write":{"path":"allowed.txt","content":"x"}}}]},
		{"when":"denied.txt","steps":[{"ask":{"write":{"path":"denied.txt","content":"x"}}}]},
		{"when":"cancelled.txt","steps":[{"ask":{"write":{"path":"cancelled.txt","content":"x"}}},{"run":["sleep","600"]}]},
		{"when":"unasked.txt","steps":[{"ask":{"write":{"path":"unasked.txt","content":"x"}}}]},
		{"when":"sleep","steps":[{"run":["sleep","600"]}]}
	]}`))
	checkNobodyWorksIn(t, dir)
	if r.Initialized.ProtocolVersion != 1 || r.Initialized.AgentInfo.Name != "agentenv" || r.Exit != 0.0 {
		t.Errorf("it says of itself %+v, and exits with %v", r.Initialized, r.Exit)
	}
	if m := r.Session.Modes; m == nil || m.CurrentModeId != "default" || len(m.AvailableModes) != 3 {
		t.Errorf("the modes are %+v", m)
	}
	if want := []acp.StopReason{"end_turn", "end_turn", "end_turn", "cancelled", "cancelled", "end_turn", "end_turn"}; !slices.Equal(r.Stops, want) {
		t.Errorf("stopped because of %s", r.Stops)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if !slices.Equal(files, []string{"allowed.txt", "made.txt", "unasked.txt"}) || len(r.Asked) != 3 {
		t.Errorf("asked %d times, and made %q", len(r.Asked), files)
	}
	for i, want := range []acp.RequestError{{Code: -32002, Message: "begin a session"}, {Code: -32602, Message: "absolute path"}, {Code: -32602, Message: "choose one"}} {
		if i >= len(r.Errors) || r.Errors[i].Code != want.Code || !strings.Contains(r.Errors[i].Message, want.Message) {
			t.Errorf("error %d is not %+v: %+v", i, want, r.Errors)
		}
	}
	var text strings.Builder
	told := map[string]bool{}
	for _, u := range r.Updates {
		if c := u.Update.AgentMessageChunk; c != nil {
			text.WriteString(c.Content.Text.Text)
		}
		told["a thought"] = told["a thought"] || u.Update.AgentThoughtChunk != nil
		told["a plan"] = told["a plan"] || u.Update.Plan != nil
		told["a call"] = told["a call"] || u.Update.ToolCall != nil
		told["the context"] = told["the context"] || u.Update.UsageUpdate != nil
		if c := u.Update.ToolCallUpdate; c != nil {
			told["a place"] = told["a place"] || slices.ContainsFunc(c.Locations, func(l acp.ToolCallLocation) bool { return l.Path == filepath.Join(dir, "made.txt") })
		}
	}
	for _, what := range []string{"a thought", "a plan", "a call", "the context", "a place"} {
		if !told[what] {
			t.Errorf("%s is not told: %+v", what, r.Updates)
		}
	}
	want := "I was told: work on [@main.go](cmd/main.go)[@notes.txt](notes.txt)\n\n<context ref=\"notes.txt\">\nremember the milk\n</context>"
	if !strings.HasPrefix(text.String(), want) {
		t.Errorf("the agent said %q", &text)
	}
}

func TestTheOfficialClientWorksWithAContainer(t *testing.T) {
	alone(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := officialClient(t, dir, "--config", inContainers(t), "--scenario", file(t, "s.json", `{"turns":[
		{"when":"ask","steps":[{"ask":{"run":["touch","asked.txt"]}}]},
		{"when":"sleep","steps":[{"run":["sleep","600"]}]},
		{"steps":[{"write":{"path":"made.txt","content":"x"}}]}
	]}`))
	if want := []acp.StopReason{"end_turn", "end_turn", "end_turn", "cancelled", "cancelled", "end_turn", "end_turn"}; !slices.Equal(r.Stops, want) || r.Exit != 0.0 {
		t.Errorf("stopped because of %s; exit status %v", r.Stops, r.Exit)
	}
	for _, name := range []string{"made.txt", "asked.txt"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}
