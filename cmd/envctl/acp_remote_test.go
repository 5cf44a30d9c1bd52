package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

// remoteReport is the output of testdata/acp/remote.mjs.
type remoteReport struct {
	Session     acp.NewSessionResponse
	Connections []struct {
		Initialized acp.InitializeResponse
		Updates     []acp.SessionNotification
		Asked       []acp.RequestPermissionRequest
	}
	Stops        []acp.StopReason
	Errors       []acp.RequestError
	Listed, Left []acp.SessionInfo
}

// serveClients starts 'envctl serve' until the test ends, and returns its address and its token.
func serveClients(t *testing.T, config string) (url, token string) {
	t.Helper()
	token = "token-of-the-tests"
	at := file(t, "token", token)
	if err := os.Chmod(at, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "envctl", "serve", "--listen", "127.0.0.1:0", "--token-file", at, "--config", config)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err = bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v: %s", err, &said)
		}
	})
	if err != nil {
		t.Fatal(err, said.String())
	}
	return strings.TrimSpace(url), token
}

func TestTheOfficialClientGoesOnOverAnotherConnection(t *testing.T) {
	modules := nodeModules(t)
	for _, transport := range []string{"ws", "http"} {
		t.Run(transport, func(t *testing.T) {
			alone(t)
			url, token := serveClients(t, file(t, "c.json", `{"sandbox":"local","agent":{"name":"script","config":{"turns":[
				{"when":"work","steps":[{"thought":"Let me see."},{"write":{"path":"made.txt","content":"x"}},{"text":"Done."}]},
				{"when":"ask","steps":[{"text":"May I?"},{"ask":{"write":{"path":"asked.txt","content":"x"}}},{"text":"allowed"}]},
				{"steps":[{"text":"turn {{turn}}"}]}
			]}}}`))
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "node", "--experimental-websocket", "--no-warnings", "testdata/acp/remote.mjs", modules, transport, url+"/acp", token)
			var out, errOut bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, &errOut)
			}
			var r remoteReport
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			checkRemote(t, r)
		})
	}
}

func checkRemote(t *testing.T, r remoteReport) {
	t.Helper()
	if len(r.Connections) != 2 || !r.Connections[1].Initialized.AgentCapabilities.LoadSession {
		t.Fatalf("the connections are %+v", r.Connections)
	}
	if !slices.Equal(r.Stops, []acp.StopReason{"end_turn", "end_turn"}) {
		t.Errorf("stopped because of %s", r.Stops)
	}
	for i, want := range []struct{ code, says string }{{"invalid", "/home/me/project"}, {"session_not_found", "none"}, {"session_busy", ""}} {
		var data map[string]any
		if i < len(r.Errors) {
			data, _ = r.Errors[i].Data.(map[string]any)
		}
		if data["code"] != want.code || !strings.Contains(r.Errors[i].Message, want.says) {
			t.Errorf("error %d is not %+v: %+v", i, want, r.Errors)
		}
	}
	if len(r.Listed) != 1 || r.Listed[0].SessionId != r.Session.SessionId || r.Listed[0].Cwd != "/home/me/project" || len(r.Left) != 0 {
		t.Errorf("listed are %+v, and left %+v", r.Listed, r.Left)
	}
	var before, after []acp.SessionUpdate
	for _, n := range r.Connections[0].Updates {
		before = append(before, n.Update)
	}
	for _, n := range r.Connections[1].Updates {
		after = append(after, n.Update)
	}
	live, replay := shownOf(before), shownOf(after)
	live = slices.DeleteFunc(live, func(s shown) bool { return strings.Contains(s.text, "asked.txt") }) // the call may not be told yet
	kinds := func(list []shown) (all []string) {
		for _, s := range list {
			all = append(all, s.kind+" "+s.text)
		}
		return all
	}
	tool := "tool Write made.txt"
	if want := []string{"thought Let me see.", tool, "agent Done.", "agent May I?"}; !slices.Equal(kinds(live), want) {
		t.Errorf("the first connection got %q", kinds(live))
	}
	want := []string{"user work", "thought Let me see.", tool, "agent Done.", "user ask", "agent May I?", "tool Write asked.txt", "agent allowed", "agent turn 3"}
	if got := kinds(replay); !slices.Equal(got, want) {
		t.Errorf("the second connection got %q", got)
	}
	for _, s := range live {
		if !slices.Contains(replay, s) {
			t.Errorf("%+v is not told again: %+v", s, replay)
		}
	}
	if len(r.Connections[0].Asked) != 1 || len(r.Connections[1].Asked) != 1 {
		t.Errorf("asked are %+v and %+v", r.Connections[0].Asked, r.Connections[1].Asked)
	}
	for _, u := range after {
		if c := u.ToolCall; c != nil && len(c.Locations) > 0 && !strings.HasPrefix(c.Locations[0].Path, "/home/me/project/") {
			t.Errorf("a call is at %s", c.Locations[0].Path)
		}
	}
}
