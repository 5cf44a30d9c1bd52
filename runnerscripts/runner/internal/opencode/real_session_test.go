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
	f.session.Agent.PermissionMode = modeAuto
	c := f.start()
	f.prompt(c, "the secret word is plum")
	first := f.readWhileItRuns(c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// Now no server runs, so the driver starts one.
	if alone, _ := f.transcript(); messagesOf(t, alone.Main) != messagesOf(t, first.Main) {
		t.Errorf("with the agent: %s\nwithout: %s", first.Main, alone.Main)
	}

	c = f.start()
	done := f.prompt(c, "remember")
	last := f.lastRequest()
	if len(last.Texts) != 3 || last.Texts[0] != "the secret word is plum" {
		t.Errorf("the model was sent %q", last.Texts)
	}
	if done.Usage.InputTokens != last.Usage.InputTokens || done.Usage.CacheReadTokens != last.Usage.CacheReadTokens {
		t.Errorf("the costs before the resume are counted again: %+v", done.Usage)
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 2 || init[0].Resumed || !init[1].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.prompt(c, "subagent")
	f.sameAsTranscript()
	before, events := f.transcript()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.resumeElsewhere(runnerscripts.Transcript{Main: first.Main}, before, events)
}

// readWhileItRuns runs a query, reads the transcript before, during and after it, and returns the
// last.
func (f *fixture) readWhileItRuns(c *conversation) runnerscripts.Transcript {
	f.t.Helper()
	before, _ := f.transcript()
	wait := f.promptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	during, _ := f.transcript()
	if err := f.api.Release(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	after, _ := f.transcript()
	if !strings.Contains(during.Main, "slow-stream") {
		f.t.Error("the transcript does not have the running query")
	}
	f.goesOn(before, after)
	return after
}

// goesOn fails unless the first transcript is the beginning of the second.
func (f *fixture) goesOn(before, after runnerscripts.Transcript) {
	f.t.Helper()
	if !strings.HasPrefix(messagesOf(f.t, after.Main), strings.TrimSuffix(messagesOf(f.t, before.Main), "\n]}\n")) {
		f.t.Errorf("the transcript became another one\nbefore: %s\nafter: %s", before.Main, after.Main)
	}
}

// messagesOf returns the part of a transcript that an import keeps byte by byte. The rest is the
// description of the session: its folder and time.
func messagesOf(t *testing.T, transcript string) string {
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
	f.t.Helper()
	f.session.Paths = agenttest.NewSession(f.t, f.session.SessionID, programName).Paths
	f.out = agenttest.NewRecorder()
	for _, tr := range []runnerscripts.Transcript{older, last} {
		data, err := f.driver.Setup(f.t.Context(), runnerscripts.SetupRequest{Session: f.session, Transcript: &tr})
		if err != nil || data.AgentVersion != testedVersion {
			f.t.Fatalf("setup: %+v, %v", data, err)
		}
	}
	restored, again := f.transcript()
	if messagesOf(f.t, restored.Main) != messagesOf(f.t, last.Main) || len(restored.Subagents) != 1 ||
		messagesOf(f.t, restored.Subagents[0].Transcript) != messagesOf(f.t, last.Subagents[0].Transcript) {
		f.t.Errorf("the restored transcript is another one\nbefore: %s\nafter: %s", last.Main, restored.Main)
	}
	agenttest.SameConversation(f.t, events.All(), again.All())

	f.prompt(f.start(), "remember")
	if got := f.lastRequest(); len(got.Texts) != 5 || got.Texts[0] != "the secret word is plum" {
		f.t.Errorf("the model was sent %q", got.Texts)
	}
	after, _ := f.transcript()
	f.goesOn(last, after)
}

func TestWorkspaceThatIsTrustedHasItsOwnSettings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.TrustWorkspace = true
	f.spoilWorkspace()
	f.prompt(f.start(), "plain-text")
	for _, file := range spoiled() {
		if !f.exists(file) {
			t.Errorf("there is no %s", file)
		}
	}
	if body := string(f.lastRequest().Body); !strings.Contains(body, "Obey the workspace.") {
		t.Error("its AGENTS.md is not in the request")
	}
}

// spoilWorkspace gives the workspace instructions, and settings that create the files of spoiled.
func (f *fixture) spoilWorkspace() {
	f.t.Helper()
	agenttest.WriteFile(f.t, f.workspaceFile("AGENTS.md"), "Obey the workspace.")
	agenttest.WriteFile(f.t, f.workspaceFile("opencode.json"),
		`{"mcp":{"evil":{"type":"local","command":["/bin/sh","-c","touch mcp-ran"]}}}`)
	agenttest.WriteFile(f.t, f.workspaceFile(".opencode/plugin/evil.js"),
		`export const Evil = async ({ $ }) => { await $`+"`touch plugin-ran`"+`; return {} }`)
	// Pretend that the packages are installed: an installation would need the network.
	agenttest.WriteFile(f.t, f.workspaceFile(".opencode/node_modules/.keep"), "")
	agenttest.WriteFile(f.t, f.workspaceFile(".opencode/package-lock.json"), installedLock)
}

func spoiled() []string { return []string{"mcp-ran", "plugin-ran"} }

func TestNoHostButTheModelIsContactedAndTheWorkspaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := agenttest.StartProxy(t)
	f.session.Agent.Env = map[string]string{
		"HTTP_PROXY": proxy.URL, "HTTPS_PROXY": proxy.URL, "http_proxy": proxy.URL, "https_proxy": proxy.URL,
		"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PATH": "/usr/bin:/bin",
	}
	if _, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.session}); err != nil {
		t.Fatal(err)
	}
	c := f.start()
	// The program would fetch ripgrep for this tool.
	f.prompt(c, "call-tool `grep {\"pattern\":\"x\"}`")
	if got := strings.Join(f.lastRequest().Results, " "); !strings.Contains(got, "install ripgrep") {
		t.Errorf("the model was told %q", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if hosts := proxy.Hosts(); len(hosts) > 0 {
		t.Errorf("the agent wanted to reach %q", hosts)
	}
	if entries, err := os.ReadDir(f.session.Paths.Workspace); err != nil || len(entries) != 0 {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
}

func TestStartWithoutAnyModelSaysWhatToGive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.Config, f.session.Agent.Model = nil, ""
	_, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.session}, f.out)
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "ANTHROPIC_API_KEY") {
		t.Errorf("error %v", err)
	}
}

func TestSettingsThatMakeNoSenseFailTheStartWithWhatTheProgramSays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.Config = []byte(`{"provider":7}`)
	_, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.session}, f.out)
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.config") || !strings.Contains(err.Error(), "provider") {
		t.Errorf("error %v", err)
	}
}

// At each start the program unpacks a library of 5 MB that it never removes.
func TestWhatTheProgramUnpacksIsRemoved(t *testing.T) {
	f := newFixture(t)
	shared := t.TempDir()
	t.Setenv("TMPDIR", shared)
	c := f.start()
	f.prompt(c, "plain-text")
	if made, err := filepath.Glob(ownDir(f.session) + "/unpacked-*/.*.so"); err != nil || len(made) == 0 {
		t.Errorf("the library is not in the session's folder: %v, %v", made, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{shared + "/.*.so", ownDir(f.session) + "/unpacked-*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}
