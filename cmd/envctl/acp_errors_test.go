package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

const (
	codeInvalidRequest = -32600
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotFound       = -32002
)

// checkRefused fails unless err has the code, and a message that contains says.
func checkRefused(t *testing.T, err error, code int, says string) {
	t.Helper()
	e := new(acp.RequestError)
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, says) {
		t.Errorf("the error is %v, not %d with %q", err, code, says)
	}
}

func TestWrongRequestsOfAnEditorAreRefused(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[
		{"when":"sleep","steps":[{"run":["sleep","600"]}]},
		{"when":"fail","steps":[{"fail":{"code":"api","message":"the model is tired","http_status":529}}]},
		{"when":"crash","steps":[{"crash":3}]},
		{"steps":[{"text":"fine"}]}
	]}`))
	id, dir := e.session()
	begin := func(cwd string, servers ...acp.McpServer) error {
		_, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: cwd, McpServers: append([]acp.McpServer{}, servers...)})
		return err
	}
	prompt := func(id acp.SessionId, blocks ...acp.ContentBlock) error {
		_, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: append([]acp.ContentBlock{}, blocks...)})
		return err
	}
	load := func(id acp.SessionId, cwd string) func() error {
		return func() error {
			_, err := e.LoadSession(e.ctx(), acp.LoadSessionRequest{SessionId: id, Cwd: cwd, McpServers: []acp.McpServer{}})
			return err
		}
	}
	stdio := func(name, command string) acp.McpServer {
		return acp.McpServer{Stdio: &acp.McpServerStdio{Name: name, Command: command, Args: []string{}, Env: []acp.EnvVariable{}}}
	}
	link, below := filepath.Join(t.TempDir(), "link"), e.folder()
	if err := errors.Join(os.Mkdir(filepath.Join(below, "sub"), 0o755), os.Symlink(below, link)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		do   func() error
		code int
		says string
	}{
		"a relative folder":  {func() error { return begin("here") }, codeInvalidParams, "absolute path"},
		"no folder":          {func() error { return begin("") }, codeInvalidParams, "absolute path"},
		"a missing folder":   {func() error { return begin(filepath.Join(dir, "none")) }, codeInvalidParams, "make the folder first"},
		"a link to a folder": {func() error { return begin(link) }, codeInvalidParams, "symbolic links lead"},
		"below a link":       {func() error { return begin(filepath.Join(link, "sub")) }, codeInvalidParams, "symbolic links lead"},
		"a file as a folder": {func() error { return begin(file(t, "file", "x")) }, codeInvalidParams, "is not a folder"},

		"a server without a name":    {func() error { return begin(dir, stdio("", "x")) }, codeInvalidParams, "mcpServers[0]: the server has no name"},
		"a server without a command": {func() error { return begin(dir, stdio("a", "")) }, codeInvalidParams, "has no command"},
		"a server twice":             {func() error { return begin(dir, stdio("a", "x"), stdio("a", "y")) }, codeInvalidParams, `"a"`},
		"a server without an address": {func() error {
			return begin(dir, acp.McpServer{Http: &acp.McpServerHttpInline{Type: "http", Name: "a", Headers: []acp.HttpHeader{}}})
		}, codeInvalidParams, "has no url"},
		"a server of another kind": {func() error {
			return begin(dir, acp.McpServer{Sse: &acp.McpServerSseInline{Type: "sse", Name: "a", Url: "http://x", Headers: []acp.HttpHeader{}}})
		}, codeInvalidParams, `type "sse"`},

		"an unknown session":      {func() error { return prompt("none", acp.TextBlock("x")) }, codeNotFound, `"none"`},
		"an empty prompt":         {func() error { return prompt(id) }, codeInvalidParams, "the prompt is empty"},
		"a picture alone":         {func() error { return prompt(id, acp.ImageBlock("aGk=", "image/png")) }, codeInvalidParams, "images alone"},
		"a sound":                 {func() error { return prompt(id, acp.AudioBlock("aGk=", "audio/wav")) }, codeInvalidParams, "prompt[0]"},
		"a failure":               {func() error { return prompt(id, acp.TextBlock("fail")) }, codeInternal, "the model is tired"},
		"a crash":                 {func() error { return prompt(id, acp.TextBlock("crash")) }, codeInternal, ""},
		"an unknown mode":         {setMode(e, id, "sideways"), codeInvalidParams, "bypassPermissions"},
		"no mode":                 {setMode(e, id, ""), codeInvalidParams, "choose one"},
		"a mode of no one":        {setMode(e, "none", "default"), codeNotFound, "session/new"},
		"a key":                   {func() error { _, err := e.Authenticate(e.ctx(), acp.AuthenticateRequest{MethodId: "key"}); return err }, codeInvalidParams, "--env"},
		"an unknown conversation": {load("none", dir), codeNotFound, `"none"`},
		"another folder":          {load(id, below), codeInvalidParams, "the session is of the folder " + dir},
		"a relative directory": {func() error {
			_, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}, AdditionalDirectories: []string{"x"}})
			return err
		}, codeInvalidParams, "additionalDirectories[0]"},
		"an unknown cursor": {func() error {
			cursor := "none"
			_, err := e.ListSessions(e.ctx(), acp.ListSessionsRequest{Cursor: &cursor})
			return err
		}, codeInvalidParams, "list again"},
		"an unknown option": {func() error {
			_, err := e.SetSessionConfigOption(e.ctx(), acp.SetSessionConfigOptionRequest{ValueId: &acp.SetSessionConfigOptionValueId{SessionId: id, ConfigId: "colour", Value: "red"}})
			return err
		}, codeInvalidParams, `"colour"`},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, c.do(), c.code, c.says) })
	}

	ended := e.saying(id, "sleep")
	e.await(id, "the command", running)
	checkRefused(t, prompt(id, acp.TextBlock("at the same time")), codeInvalidRequest, "wait for the prompt")
	if err := e.Cancel(e.ctx(), acp.CancelNotification{SessionId: id}); err != nil {
		t.Fatal(err)
	}
	if stop := ended(); stop != acp.StopReasonCancelled {
		t.Errorf("stopped because of %s", stop)
	}
	if stop := e.say(id, "go"); stop != acp.StopReasonEndTurn || !strings.HasSuffix(e.text(id), "fine") {
		t.Errorf("the session is of no use any more: %s, %q", stop, e.text(id))
	}
	if _, err := e.CloseSession(e.ctx(), acp.CloseSessionRequest{SessionId: id}); err != nil {
		t.Error(err)
	}
	checkRefused(t, prompt(id, acp.TextBlock("x")), codeNotFound, "begin a session")
}

func setMode(e *editor, id acp.SessionId, mode acp.SessionModeId) func() error {
	return func() error {
		_, err := e.SetSessionMode(e.ctx(), acp.SetSessionModeRequest{SessionId: id, ModeId: mode})
		return err
	}
}

func TestTheDataOfAFailureNamesItsKind(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"fail":{"code":"api","message":"tired","http_status":529}}]}]}`))
	id, _ := e.session()
	_, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("x")}})
	refused := new(acp.RequestError)
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if data, ok := refused.Data.(map[string]any); !ok || data["code"] != "api" || data["httpStatus"] != 529.0 {
		t.Errorf("the data is %v", refused.Data)
	}
}

func TestAConfigurationThatTheEditorDecidesAboutIsRefused(t *testing.T) {
	alone(t)
	for says, args := range map[string][]string{
		"workspace: the editor":           {"--config", file(t, "c.yaml", "workspace: [{folder: {path: /}}]")},
		"sandbox.keep: sandboxes end":     {"--config", file(t, "c.yaml", "sandbox: {type: local, keep: true}")},
		"there is no agent":               {"--agent", "smith"},
		"--scenario: ":                    {"--scenario", "none.json"},
		"call it as 'envctl acp [flags]'": {"argument"},
	} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, append([]string{"acp"}, args...))
		if code != exitUsage || out.Len() > 0 || !strings.Contains(errOut.String(), says) {
			t.Errorf("%q: exit status %d, standard output %q, standard error %q", args, code, &out, &errOut)
		}
	}
}

func TestASessionWithSettingsThatItsSandboxDoesNotHaveIsRefused(t *testing.T) {
	alone(t)
	e := startEditor(t, "--sandbox", "local", "--image", "x", "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"text":"fine"}]}]}`))
	_, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: e.folder(), McpServers: []acp.McpServer{}})
	checkRefused(t, err, codeInvalidParams, "sandbox.image: a local sandbox has none of its own")
}
