package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// inContainers returns the path of a configuration of sandboxes in containers.
func inContainers(t *testing.T) string {
	t.Helper()
	config, err := json.Marshal(map[string]any{"sandbox": environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever}}})
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "docker.json", string(config))
}

func TestAContainerHasTheEditorsFolderAtItsPath(t *testing.T) {
	testneed.Root(t, "a folder is given to another user")
	alone(t)
	e := startEditor(t, "--config", inContainers(t), "--scenario", file(t, "s.json", `{"turns":[{"steps":[
		{"write":{"path":"made.txt","content":"x"}},{"run":["sh","-c","pwd; id -u; hostname > where; cat given.txt"]}]}]}`))
	for name, uid := range map[string]int{"root's": 0, "another user's": 1234} {
		dir := e.folder()
		if err := os.WriteFile(filepath.Join(dir, "given.txt"), []byte("from the editor"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
		id := e.begin(dir)
		if stop := e.say(id, "go"); stop != acp.StopReasonEndTurn {
			t.Errorf("%s: stopped because of %s", name, stop)
		}
		told, err := json.Marshal(e.of(id))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			fmt.Sprintf(`"path":%q`, filepath.Join(dir, "made.txt")), fmt.Sprintf(`%s\n%d\nfrom the editor`, dir, uid),
		} {
			if !strings.Contains(string(told), want) {
				t.Errorf("%s: %s is not told:\n%s", name, want, told)
			}
		}
		info, err := os.Stat(filepath.Join(dir, "made.txt"))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != uid {
			t.Errorf("%s: the new file belongs to %d", name, owner)
		}
		where, err := os.ReadFile(filepath.Join(dir, "where"))
		if host, _ := os.Hostname(); err != nil || strings.TrimSpace(string(where)) == host {
			t.Errorf("%s: it ran at %q, %v", name, where, err)
		}
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
	left, err := environment.List(t.Context(), environment.Sandbox{Type: "docker"})
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(left, func(i environment.SandboxInfo) bool {
		return i.InUse && i.Image == testdocker.Busybox(t) && testdocker.Made(t, i.ID)
	}) {
		t.Errorf("containers are left: %+v", left)
	}
}

func TestAnEditorsRepositoryRunsNothingOfTheAgents(t *testing.T) {
	alone(t)
	e := startEditor(t, "--config", inContainers(t), "--scenario", file(t, "s.json", `{"turns":[{"steps":[
		{"run":["sh","-c","echo '[core]' >> .git/config; echo x > .git/hooks/pre-commit; rm -r .git/hooks; mv .git old; echo x > .vscode/tasks.json; echo x > made.txt"]}]}]}`))
	dir := e.folder()
	if out, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", dir).CombinedOutput(); err != nil {
		t.Fatalf("git: %v: %s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, ".vscode"), 0o755); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		config, err := os.ReadFile(filepath.Join(dir, ".git", "config"))
		hooks, herr := os.ReadDir(filepath.Join(dir, ".git", "hooks"))
		settings, serr := os.ReadDir(filepath.Join(dir, ".vscode"))
		return fmt.Sprint(string(config), hooks, settings, errors.Join(err, herr, serr))
	}
	before := read()
	if stop := e.say(e.begin(dir), "go"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err != nil {
		t.Error(err)
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
	if after := read(); after != before {
		t.Errorf("it was %s and is %s", before, after)
	}
}

func TestAnEditorsFolderThatBecomesALinkIsNotFollowed(t *testing.T) {
	alone(t)
	e := startEditor(t, "--config", inContainers(t), "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"write":{"path":"made.txt","content":"x"}}]}]}`))
	victim := t.TempDir()
	for name, at := range map[string]string{"the folder": "a/b", "the one above": "a"} {
		dir := e.folder()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.MkdirAll(filepath.Join(victim, "b"), 0o755)); err != nil {
			t.Fatal(err)
		}
		id := e.begin(filepath.Join(dir, "a/b"))
		if err := errors.Join(os.Rename(filepath.Join(dir, at), filepath.Join(dir, "old")), os.Symlink(victim, filepath.Join(dir, at))); err != nil {
			t.Fatal(err)
		}
		_, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("go")}})
		if err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
		if made, err := filepath.Glob(filepath.Join(victim, "*", "*")); err != nil || len(made) > 0 {
			t.Errorf("%s: the sandbox has made %v, %v", name, made, err)
		}
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
}

func TestASandboxAtModalHasACopyOfTheEditorsFolder(t *testing.T) {
	alone(t)
	for name, value := range modalServer(t) {
		t.Setenv(name, value)
	}
	e := startEditor(t, "--config", file(t, "modal.yaml", "sandbox: {type: modal, image: \"debian:12\", grace: 1m}"),
		"--scenario", file(t, "s.json", `{"turns":[{"steps":[{"run":["cat","given.txt"]},{"write":{"path":"made.txt","content":"x"}}]}]}`))
	id, dir := e.session()
	if err := os.WriteFile(filepath.Join(dir, "given.txt"), []byte("from the editor"), 0o644); err != nil {
		t.Fatal(err)
	}
	e.say(id, "go")
	told, err := json.Marshal(e.of(id))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf(`"path":%q`, filepath.Join(dir, "made.txt")), "from the editor"} {
		if !strings.Contains(string(told), want) {
			t.Errorf("%s is not told:\n%s", want, told)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err == nil {
		t.Error("the editor's own folder was changed")
	}
}

// TestClaudeAsksTheEditor runs the real Claude Code against a scripted model. The key is in the
// environment of envctl only, as docs/editors.md says.
func TestClaudeAsksTheEditor(t *testing.T) {
	alone(t)
	t.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+filepath.Dir(testagents.Claude(t)))
	t.Setenv("ANTHROPIC_API_KEY", "not-a-real-key")
	t.Setenv("ANTHROPIC_BASE_URL", startModel(t, ""))
	e := startEditor(t, "--agent", "claude")
	id, dir := e.session()
	e.permit = choosing(acp.PermissionOptionKindRejectOnce)
	if stop := e.say(id, "write-file `denied.txt`"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
	var asked []acp.RequestPermissionRequest
	e.permit = func(ctx context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		asked = append(asked, req)
		return choosing(acp.PermissionOptionKindAllowOnce)(ctx, req)
	}
	if stop := e.say(id, "write-file `made.txt`"); stop != acp.StopReasonEndTurn {
		t.Errorf("stopped because of %s", stop)
	}
	if _, err := os.Stat(filepath.Join(dir, "denied.txt")); err == nil {
		t.Error("what the editor denied was written")
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err != nil {
		t.Error(err)
	}
	if len(asked) != 1 || len(asked[0].ToolCall.Locations) == 0 || asked[0].ToolCall.Locations[0].Path != filepath.Join(dir, "made.txt") {
		t.Errorf("asked was %+v", asked)
	}
	// The agent streams its text and then sends it as a whole: the editor gets it once.
	before := e.text(id)
	e.say(id, "remember")
	said := strings.TrimPrefix(e.text(id), before)
	if strings.Count(said, "denied.txt") != 1 || strings.Count(said, "made.txt") != 1 {
		t.Errorf("Claude Code remembers %q", said)
	}
}

// TestClaudeAsksForWords checks that a question of the agent is a form of an editor that shows forms.
func TestClaudeAsksForWords(t *testing.T) {
	alone(t)
	t.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+filepath.Dir(testagents.Claude(t)))
	t.Setenv("ANTHROPIC_API_KEY", "not-a-real-key")
	t.Setenv("ANTHROPIC_BASE_URL", startModel(t, ""))
	e := startEditor(t, "--agent", "claude")
	var asked []acp.UnstableCreateElicitationForm
	answer := acp.UnstableCreateElicitationResponse{Accept: &acp.UnstableCreateElicitationAccept{Action: "accept", Content: map[string]any{"answer01": "Blue"}}}
	e.showForms(func(f acp.UnstableCreateElicitationForm) acp.UnstableCreateElicitationResponse {
		asked = append(asked, f)
		return answer
	})
	e.permit = func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		t.Error("the agent asked for permission")
		return acp.NewRequestPermissionOutcomeCancelled()
	}
	id, _ := e.session()
	told := func() string {
		data, err := json.Marshal(e.of(id))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	e.say(id, "ask-user")
	if got := told(); !strings.Contains(got, `=\"Blue\"`) || len(asked) != 1 {
		t.Errorf("asked was %+v, and told\n%s", asked, got)
	}
	schema, err := json.Marshal(asked[0].RequestedSchema)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"properties":{"answer01":{"description":"Which colour?","oneOf":[{"const":"Red","description":"The warm one","title":"Red"},` +
		`{"const":"Blue","description":"The cold one","title":"Blue"}],"title":"Colour","type":"string"}},"required":["answer01"],"type":"object"}`
	if string(schema) != want {
		t.Errorf("the form is\n%s, not\n%s", schema, want)
	}
	answer = acp.UnstableCreateElicitationResponse{Decline: &acp.UnstableCreateElicitationDecline{Action: "decline"}}
	e.say(id, "ask-user")
	if got := told(); !strings.Contains(got, "The user did not answer.") || len(asked) != 2 {
		t.Errorf("asked was %+v, and told\n%s", asked, got)
	}
}

func TestAnEditorsMCPServersAreInTheProfile(t *testing.T) {
	alone(t)
	e := startEditor(t, "--config", file(t, "c.yaml", `
profile: {mcp_servers: [{name: own, command: [own]}]}
scripts: {setup_session: [sh, -c, "cat > setup.json; exit 1"]}
`))
	dir := e.folder()
	id := e.begin(dir,
		acp.McpServer{Stdio: &acp.McpServerStdio{Name: "files", Command: "serve", Args: []string{"-v"}, Env: []acp.EnvVariable{{Name: "K", Value: "v"}}}},
		acp.McpServer{Http: &acp.McpServerHttpInline{Type: "http", Name: "web", Url: "http://x.test", Headers: []acp.HttpHeader{{Name: "H", Value: "h"}}}},
	)
	_, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("x")}})
	checkRefused(t, err, codeInternal, "")
	data, err := os.ReadFile(filepath.Join(dir, "setup.json"))
	if err != nil {
		t.Fatal(err)
	}
	var req runnerscripts.SetupRequest
	if err := json.Unmarshal(data, &req); err != nil {
		t.Fatal(err)
	}
	want := []runnerscripts.MCPServer{
		{Name: "own", Command: []string{"own"}},
		{Name: "files", Command: []string{"serve", "-v"}, Env: map[string]string{"K": "v"}},
		{Name: "web", URL: "http://x.test", Headers: map[string]string{"H": "h"}},
	}
	if !reflect.DeepEqual(req.Profile.MCPServers, want) {
		t.Errorf("the agent gets %+v", req.Profile.MCPServers)
	}
}
