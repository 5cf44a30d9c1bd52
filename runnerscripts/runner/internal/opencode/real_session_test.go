package opencode

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestResumeInANewProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.prompt(c, "the secret word is plum")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = f.start()
	done := f.prompt(c, "remember")
	last := f.lastRequest()
	if len(last.Texts) != 2 || last.Texts[0] != "the secret word is plum" {
		t.Errorf("the model was sent %q", last.Texts)
	}
	if done.Usage.InputTokens != last.Usage.InputTokens || done.Usage.CacheReadTokens != last.Usage.CacheReadTokens {
		t.Errorf("the costs before the resume are counted again: %+v", done.Usage)
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 2 || init[0].Resumed || !init[1].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.sameAsTranscript()
}

func TestResumeInAnotherFolderWithTheTranscriptRestored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = modeAuto
	c := f.start()
	f.prompt(c, "subagent")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	before, events := f.transcript()

	f.session.Paths = agenttest.NewSession(t, f.session.SessionID, programName).Paths
	f.out = agenttest.NewRecorder()
	setup := runnerscripts.SetupRequest{Session: f.session, Transcript: &before}
	for range 2 { // it can be called again
		data, err := f.driver.Setup(t.Context(), setup)
		if err != nil || data.AgentVersion != testedVersion {
			t.Fatalf("setup: %+v, %v", data, err)
		}
	}
	restored, again := f.transcript()
	// The program rewrites the description of the session: its folder and time.
	if messagesOf(t, restored.Main) != messagesOf(t, before.Main) || len(restored.Subagents) != 1 ||
		messagesOf(t, restored.Subagents[0].Transcript) != messagesOf(t, before.Subagents[0].Transcript) {
		t.Errorf("the restored transcript is another one\nbefore: %s\nafter: %s", before.Main, restored.Main)
	}
	agenttest.SameConversation(t, events.All(), again.All())

	f.prompt(f.start(), "remember")
	if last := f.lastRequest(); len(last.Texts) != 2 || last.Texts[0] != "subagent" {
		t.Errorf("the model was sent %q", last.Texts)
	}
	after, _ := f.transcript()
	if !strings.HasPrefix(messagesOf(t, after.Main), strings.TrimSuffix(messagesOf(t, before.Main), "\n]}\n")) {
		t.Error("the resumed session does not go on with the restored transcript")
	}
}

// messagesOf is the part of a transcript that an import keeps byte by byte.
func messagesOf(t *testing.T, transcript string) string {
	t.Helper()
	_, messages, ok := strings.Cut(transcript, `,"messages":[`)
	if !ok {
		t.Fatalf("a transcript without messages: %s", transcript)
	}
	return messages
}

func TestTranscriptIsReadWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.prompt(c, "plain-text")
	live, _ := f.transcript()
	wait := f.promptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	during, _ := f.transcript()
	if err := f.api.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(during.Main, "slow-stream") {
		t.Error("the transcript does not have the running query")
	}
	running, _ := f.transcript()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// Now there is no server to ask, so one is started.
	alone, _ := f.transcript()
	if messagesOf(t, alone.Main) != messagesOf(t, running.Main) {
		t.Errorf("with the agent: %s\nwithout: %s", running.Main, alone.Main)
	}
	if !strings.HasPrefix(messagesOf(t, alone.Main), strings.TrimSuffix(messagesOf(t, live.Main), "\n]}\n")) {
		t.Errorf("the first query became another one\nfirst: %s\nlast: %s", live.Main, alone.Main)
	}
}

func TestWorkspaceIsTrustedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(map[bool]string{true: "trusted", false: "untrusted"}[trusted], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.session.Agent.TrustWorkspace = trusted
			agenttest.WriteFile(t, f.workspaceFile("opencode.json"),
				`{"mcp":{"evil":{"type":"local","command":["/bin/sh","-c","touch mcp-ran"]}}}`)
			f.prompt(f.start(), "plain-text")
			if f.exists("mcp-ran") != trusted {
				t.Errorf("the MCP server ran: %v", !trusted)
			}
		})
	}
}

func TestPermissionRequestOfASubagentIsInItsConversation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "subagent `touch asked`")
	e := f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypePermissionRequest))
	req := agenttest.Payload[runnerscripts.PermissionRequest](t, e)
	subs := agenttest.Fold(t, f.out.All()).Subagents
	if len(subs) != 1 || e.ConversationID != subs[0].ToolCallID || req.ToolCall.Title != "touch asked" {
		t.Errorf("request in %q: %s", e.ConversationID, agenttest.Show(t, req))
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if !f.exists("asked") {
		t.Error("the command did not run")
	}
	for _, e := range f.out.All() {
		if e.Type == runnerscripts.TypePermissionResolved && e.ConversationID != subs[0].ToolCallID {
			t.Errorf("resolved in %q", e.ConversationID)
		}
	}
}

func TestEndOfTheContextEndsTheAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := f.driver.Start(ctx, runnerscripts.QueryRequest{Session: f.session}, f.out)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-c.(*conversation).server.gone
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestEndOfThePromptsContextEndsItAndTheNextOneGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.prompt(c, "first plain-text")
	ctx, cancel := context.WithCancel(t.Context())
	wait := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "slow-stream")
		wait <- err
	}()
	f.held(runnerscripts.TypeAgentMessage)
	cancel()
	if err := <-wait; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	f.prompt(c, "remember")
	if got := f.lastRequest().Texts; got[0] != "first plain-text" {
		t.Errorf("the model was sent %q", got)
	}
}

func TestRawLinesComeOnRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.session, Raw: true}, f.out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	f.prompt(c, "plain-text")
	var types []string
	for _, l := range agenttest.Payloads[event](t, f.out.All(), runnerscripts.TypeRaw) {
		types = append(types, l.Type)
	}
	if all := strings.Join(types, " "); !strings.Contains(all, "message.part.delta") || !strings.Contains(all, "session.status") {
		t.Errorf("raw lines: %s", all)
	}
}

func TestNoHostButTheModelIsContacted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := agenttest.StartProxy(t)
	f.session.Agent.Env = map[string]string{
		"HTTP_PROXY": proxy.URL, "HTTPS_PROXY": proxy.URL, "http_proxy": proxy.URL, "https_proxy": proxy.URL,
		"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
	}
	if _, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.session}); err != nil {
		t.Fatal(err)
	}
	c := f.start()
	f.prompt(c, "plain-text")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if hosts := proxy.Hosts(); len(hosts) > 0 {
		t.Errorf("the agent wanted to reach %q", hosts)
	}
}

func TestModelThatIsNotThereFailsTheStart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spoil func(*runnerscripts.Session)
		want  string
	}{
		"an unknown model": {func(s *runnerscripts.Session) { s.Agent.Model = "scripted/none" }, "scripted/large, scripted/small"},
		"an unknown mode":  {func(s *runnerscripts.Session) { s.Agent.PermissionMode = "no-such-mode" }, "acceptEdits, auto, build, plan"},
		"no key":           {func(s *runnerscripts.Session) { s.Agent.Config, s.Agent.Model = nil, "" }, "ANTHROPIC_API_KEY"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tt.spoil(&f.session)
			_, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.session}, f.out)
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
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

func TestPasswordIsNotKeptAfterTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	info, err := os.Stat(addressFile(f.session))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("while it runs: %v, %v", info, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(addressFile(f.session)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after its end: %v", err)
	}
}
