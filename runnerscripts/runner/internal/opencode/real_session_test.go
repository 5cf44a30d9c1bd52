package opencode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestResume tests all cases with one session, because each case needs a start.
func TestResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeAuto
	c := f.start()
	f.Prompt(c, "the secret word is plum")
	first := f.readWhileItRuns(c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// Now no server runs, so the driver starts one.
	if alone, _ := f.Transcript(); messagesOf(t, alone.Main) != messagesOf(t, first.Main) {
		t.Errorf("with the agent: %s\nwithout: %s", first.Main, alone.Main)
	}

	c = f.start()
	done := f.Prompt(c, "remember")
	last := f.LastRequest()
	if len(last.Texts) != 3 || last.Texts[0] != "the secret word is plum" {
		t.Errorf("the model was sent %q", last.Texts)
	}
	if done.Usage.InputTokens != last.Usage.InputTokens || done.Usage.CacheReadTokens != last.Usage.CacheReadTokens {
		t.Errorf("the costs before the resume are counted again: %+v", done.Usage)
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 2 || init[0].Resumed || !init[1].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.Prompt(c, "subagent")
	f.SameAsTranscript()
	before, events := f.Transcript()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.resumeElsewhere(runnerscripts.Transcript{Main: first.Main}, before, events)
}

// readWhileItRuns runs a query, reads the transcript before, during and after it, and returns the
// last.
func (f *fixture) readWhileItRuns(c *conversation) runnerscripts.Transcript {
	f.Helper()
	before, _ := f.Transcript()
	wait := f.PromptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	during, _ := f.Transcript()
	if err := f.API.Release(f.Context()); err != nil {
		f.Fatal(err)
	}
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	after, _ := f.Transcript()
	if !strings.Contains(during.Main, "slow-stream") {
		f.Error("the transcript does not have the running query")
	}
	f.goesOn(before, after)
	return after
}

// goesOn fails unless the first transcript is the beginning of the second.
func (f *fixture) goesOn(before, after runnerscripts.Transcript) {
	f.Helper()
	if !strings.HasPrefix(messagesOf(f, after.Main), strings.TrimSuffix(messagesOf(f, before.Main), "\n]}\n")) {
		f.Errorf("the transcript became another one\nbefore: %s\nafter: %s", before.Main, after.Main)
	}
}

// messagesOf returns the part of a transcript that an import keeps byte by byte. The rest is the
// description of the session: its folder and time.
func messagesOf(t testing.TB, transcript string) string {
	t.Helper()
	_, messages, ok := strings.Cut(transcript, `,"messages":[`)
	if !ok {
		t.Fatalf("a transcript without messages: %s", transcript)
	}
	return messages
}

// resumeElsewhere continues the session in a new sandbox, after restoring an older transcript and
// then the last one.
func (f *fixture) resumeElsewhere(older, last runnerscripts.Transcript, events *agenttest.Recorder) {
	f.Helper()
	f.Session.Paths = agenttest.NewSession(f, f.Session.SessionID, programName).Paths
	f.Out = agenttest.NewRecorder()
	for _, tr := range []runnerscripts.Transcript{older, last} {
		data, err := f.driver.Setup(f.Context(), runnerscripts.SetupRequest{Session: f.Session, Transcript: &tr})
		if err != nil || data.AgentVersion != testedVersion {
			f.Fatalf("setup: %+v, %v", data, err)
		}
	}
	restored, again := f.Transcript()
	if messagesOf(f, restored.Main) != messagesOf(f, last.Main) || len(restored.Subagents) != 1 ||
		messagesOf(f, restored.Subagents[0].Transcript) != messagesOf(f, last.Subagents[0].Transcript) {
		f.Errorf("the restored transcript is another one\nbefore: %s\nafter: %s", last.Main, restored.Main)
	}
	agenttest.SameConversation(f, events.All(), again.All())

	f.Prompt(f.start(), "remember")
	if got := f.LastRequest(); len(got.Texts) != 5 || got.Texts[0] != "the secret word is plum" {
		f.Errorf("the model was sent %q", got.Texts)
	}
	after, _ := f.Transcript()
	f.goesOn(last, after)
}

func TestWhatASessionAllows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.TrustWorkspace, f.Session.Agent.AllowOutside = true, true
	f.Session.Agent.PermissionMode = modeAuto
	f.spoilWorkspace()
	c := f.start()
	outside := filepath.Join(t.TempDir(), "outside.txt")
	f.Prompt(c, "write-file `"+outside+"`")
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	f.Prompt(c, "plain-text")
	for _, file := range spoiled() {
		if !f.Exists(file) {
			t.Errorf("there is no %s", file)
		}
	}
	if body := string(f.LastRequest().Body); !strings.Contains(body, "Obey the workspace.") {
		t.Error("the workspace's AGENTS.md is not in the request")
	}
}

// spoilWorkspace gives the workspace instructions, and settings that create the files of spoiled.
func (f *fixture) spoilWorkspace() {
	f.Helper()
	agenttest.WriteFile(f, f.WorkspaceFile("AGENTS.md"), "Obey the workspace.")
	agenttest.WriteFile(f, f.WorkspaceFile("opencode.json"),
		`{"mcp":{"evil":{"type":"local","command":["/bin/sh","-c","touch mcp-ran"]}}}`)
	agenttest.WriteFile(f, f.WorkspaceFile(".opencode/plugin/evil.js"),
		`export const Evil = async ({ $ }) => { await $`+"`touch plugin-ran`"+`; return {} }`)
	// Pretend that the packages are installed: an installation would need the network.
	agenttest.WriteFile(f, f.WorkspaceFile(".opencode/node_modules/.keep"), "")
	agenttest.WriteFile(f, f.WorkspaceFile(".opencode/package-lock.json"), installedLock)
}

func spoiled() []string { return []string{"mcp-ran", "plugin-ran"} }

func TestNoHostButTheModelIsContactedAndTheWorkspaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := agenttest.StartProxy(t)
	f.Session.Agent.Env = map[string]string{
		"HTTP_PROXY": proxy.URL, "HTTPS_PROXY": proxy.URL, "http_proxy": proxy.URL, "https_proxy": proxy.URL,
		"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PATH": "/usr/bin:/bin",
	}
	if _, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session}); err != nil {
		t.Fatal(err)
	}
	c := f.start()
	// The program would fetch ripgrep for this tool.
	f.Prompt(c, "call-tool `grep {\"pattern\":\"x\"}`")
	if got := strings.Join(f.LastRequest().Results, " "); !strings.Contains(got, "install ripgrep") {
		t.Errorf("the model was told %q", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if hosts := proxy.Hosts(); len(hosts) > 0 {
		t.Errorf("the agent wanted to reach %q", hosts)
	}
	if entries, err := os.ReadDir(f.Session.Paths.Workspace); err != nil || len(entries) != 0 {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
}

func TestStartWithoutAnyModelSaysWhatToGive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Config, f.Session.Agent.Model = nil, ""
	_, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, f.Out)
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "ANTHROPIC_API_KEY") {
		t.Errorf("error %v", err)
	}
}

func TestSettingsThatMakeNoSenseFailTheStartWithWhatTheProgramSays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Config = []byte(`{"provider":7}`)
	_, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, f.Out)
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.config") || !strings.Contains(err.Error(), "provider") {
		t.Errorf("error %v", err)
	}
}

// TestFilesOfTheServerAreRemoved checks the file with the password, and a library of 5 MB that the
// program unpacks at each start and never removes.
func TestFilesOfTheServerAreRemoved(t *testing.T) {
	f := newFixture(t)
	shared := t.TempDir()
	t.Setenv("TMPDIR", shared)
	c := f.start()
	f.Prompt(c, "plain-text")
	if info, err := os.Stat(addressFile(f.Session)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}
	if made, err := filepath.Glob(ownDir(f.Session) + "/unpacked-*/.*.so"); err != nil || len(made) == 0 {
		t.Errorf("the library is not in the session's folder: %v, %v", made, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{shared + "/*", shared + "/.*.so", ownDir(f.Session) + "/unpacked-*", addressFile(f.Session)} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}
