package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	acp "github.com/coder/acp-go-sdk"
)

// editor is an ACP client that has started envctl acp.
type editor struct {
	*acp.ClientSideConnection
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout bytes.Buffer // read it only after the process has ended
	stderr hooked

	// permit answers permission requests; nil allows them once.
	permit func(ctx context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome

	// fill answers forms.
	fill func(acp.UnstableCreateElicitationForm) acp.UnstableCreateElicitationResponse

	mu      sync.Mutex
	updates []acp.SessionNotification
	more    chan struct{} // closed and replaced when there is another update
	ended   bool
	folders []string // of the sessions
}

// startEditor starts envctl acp and ends it with the test. It then checks that envctl printed
// only messages of the protocol, and that no process is left in the folders.
func startEditor(t *testing.T, args ...string) *editor {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the cleanup ends the process gracefully
	e := &editor{t: t, cmd: exec.CommandContext(ctx, "envctl", append([]string{"acp"}, args...)...), more: make(chan struct{})}
	e.cmd.Stderr = &e.stderr
	var err error
	if e.stdin, err = e.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.ClientSideConnection = acp.NewClientSideConnection(e, e.stdin, io.TeeReader(out, &e.stdout))
	e.SetLogger(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := e.end(); err != nil {
			t.Errorf("envctl acp: %v\n%s", err, e.diagnostics())
		}
	})
	res, err := e.Initialize(e.ctx(), acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersionNumber})
	if err != nil {
		t.Fatal(err)
	}
	if res.ProtocolVersion != 1 || res.AgentInfo.Name != "agentenv" || !res.AgentCapabilities.LoadSession || res.AgentCapabilities.SessionCapabilities.Resume == nil ||
		!res.AgentCapabilities.McpCapabilities.Http || !res.AgentCapabilities.PromptCapabilities.EmbeddedContext || !res.AgentCapabilities.PromptCapabilities.Image {
		t.Errorf("it says of itself: %+v", res)
	}
	return e
}

// ctx returns a context for a call that must not hang.
func (e *editor) ctx() context.Context {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	e.t.Cleanup(cancel)
	return ctx
}

// end closes the pipe, as an editor that quits does, and waits for the process to exit.
func (e *editor) end() error {
	if e.ended {
		return nil
	}
	e.ended = true
	err := e.stdin.Close()
	select {
	case <-e.Done(): // all output is read
	case <-time.After(patience):
		err = errors.Join(err, errors.New("it does not end"), e.cmd.Process.Kill())
	}
	err = errors.Join(err, e.cmd.Wait())
	for _, dir := range e.folders {
		checkNobodyWorksIn(e.t, dir)
	}
	for line := range strings.Lines(e.stdout.String()) {
		var m struct {
			JSONRPC string `json:"jsonrpc"`
		}
		if jerr := json.Unmarshal([]byte(line), &m); jerr != nil || m.JSONRPC != "2.0" {
			e.t.Errorf("standard output has %q", line)
		}
	}
	return err
}

// diagnostics returns the output on standard error so far.
func (e *editor) diagnostics() string {
	e.stderr.mu.Lock()
	defer e.stderr.mu.Unlock()
	return e.stderr.buf.String()
}

// folder creates a folder of the editor, in which no process may be left at the end.
func (e *editor) folder() string {
	e.t.Helper()
	dir, err := filepath.EvalSymlinks(e.t.TempDir())
	if err != nil {
		e.t.Fatal(err)
	}
	e.folders = append(e.folders, dir)
	return dir
}

// begin starts a session in a folder.
func (e *editor) begin(dir string, servers ...acp.McpServer) acp.SessionId {
	e.t.Helper()
	res, err := e.NewSession(e.ctx(), acp.NewSessionRequest{Cwd: dir, McpServers: append([]acp.McpServer{}, servers...)})
	if err != nil {
		e.t.Fatal(err)
	}
	return res.SessionId
}

// session starts a session in a new folder and returns both.
func (e *editor) session() (acp.SessionId, string) {
	e.t.Helper()
	dir := e.folder()
	return e.begin(dir), dir
}

// say sends a prompt and returns why the agent stopped.
func (e *editor) say(id acp.SessionId, text string) acp.StopReason {
	e.t.Helper()
	res, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
	if err != nil {
		e.t.Fatalf("%v\n%s", err, e.diagnostics())
	}
	return res.StopReason
}

// saying sends a prompt and returns a function that waits for the stop reason.
func (e *editor) saying(id acp.SessionId, text string) func() acp.StopReason {
	done := make(chan acp.StopReason, 1)
	ctx := e.ctx()
	go func() {
		res, err := e.Prompt(ctx, acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
		if err != nil {
			e.t.Error(err)
		}
		done <- res.StopReason
	}()
	return func() acp.StopReason { return <-done }
}

// await waits for an update of a session.
func (e *editor) await(id acp.SessionId, what string, is func(acp.SessionUpdate) bool) {
	e.t.Helper()
	ctx := e.ctx()
	for {
		e.mu.Lock()
		more := e.more
		e.mu.Unlock()
		for _, u := range e.of(id) {
			if is(u) {
				return
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			e.t.Fatalf("%s was not told: %+v", what, e.of(id))
		}
	}
}

// of returns the updates of a session so far.
func (e *editor) of(id acp.SessionId) []acp.SessionUpdate {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []acp.SessionUpdate
	for _, n := range e.updates {
		if n.SessionId == id {
			list = append(list, n.Update)
		}
	}
	return list
}

// text returns what the agent has said in a session.
func (e *editor) text(id acp.SessionId) string {
	var b strings.Builder
	for _, u := range e.of(id) {
		if c := u.AgentMessageChunk; c != nil && c.Content.Text != nil {
			b.WriteString(c.Content.Text.Text)
		}
	}
	return b.String()
}

func running(u acp.SessionUpdate) bool {
	return u.ToolCall != nil && u.ToolCall.Status == acp.ToolCallStatusInProgress ||
		u.ToolCallUpdate != nil && u.ToolCallUpdate.Status != nil && *u.ToolCallUpdate.Status == acp.ToolCallStatusInProgress
}

func (e *editor) SessionUpdate(_ context.Context, n acp.SessionNotification) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.updates = append(e.updates, n)
	close(e.more)
	e.more = make(chan struct{})
	return nil
}

func (e *editor) RequestPermission(ctx context.Context, req acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	permit := e.permit
	if permit == nil {
		permit = choosing(acp.PermissionOptionKindAllowOnce)
	}
	return acp.RequestPermissionResponse{Outcome: permit(ctx, req)}, nil
}

// showForms tells envctl that the editor shows forms.
func (e *editor) showForms(fill func(acp.UnstableCreateElicitationForm) acp.UnstableCreateElicitationResponse) {
	e.t.Helper()
	e.fill = fill
	_, err := e.Initialize(e.ctx(), acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersionNumber, ClientCapabilities: acp.ClientCapabilities{
		Elicitation: &acp.ElicitationCapabilities{Form: &acp.ElicitationFormCapabilities{}},
	}})
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *editor) UnstableCreateElicitation(_ context.Context, req acp.UnstableCreateElicitationRequest) (acp.UnstableCreateElicitationResponse, error) {
	return e.fill(*req.Form), nil
}

func (*editor) UnstableCompleteElicitation(context.Context, acp.UnstableCompleteElicitationNotification) error {
	return nil
}

// choosing returns a function that answers with the option of a kind.
func choosing(kind acp.PermissionOptionKind) func(context.Context, acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
	return func(_ context.Context, req acp.RequestPermissionRequest) acp.RequestPermissionOutcome {
		for _, o := range req.Options {
			if o.Kind == kind {
				return acp.NewRequestPermissionOutcomeSelected(o.OptionId)
			}
		}
		return acp.NewRequestPermissionOutcomeCancelled()
	}
}

// agentenv does not call these methods: its agents work in the sandbox.

var errNotAsked = errors.New("agentenv asks for no files and terminals of the editor")

func (*editor) ReadTextFile(context.Context, acp.ReadTextFileRequest) (r acp.ReadTextFileResponse, err error) {
	return r, errNotAsked
}

func (*editor) WriteTextFile(context.Context, acp.WriteTextFileRequest) (r acp.WriteTextFileResponse, err error) {
	return r, errNotAsked
}

func (*editor) CreateTerminal(context.Context, acp.CreateTerminalRequest) (r acp.CreateTerminalResponse, err error) {
	return r, errNotAsked
}

func (*editor) KillTerminal(context.Context, acp.KillTerminalRequest) (r acp.KillTerminalResponse, err error) {
	return r, errNotAsked
}

func (*editor) TerminalOutput(context.Context, acp.TerminalOutputRequest) (r acp.TerminalOutputResponse, err error) {
	return r, errNotAsked
}

func (*editor) ReleaseTerminal(context.Context, acp.ReleaseTerminalRequest) (r acp.ReleaseTerminalResponse, err error) {
	return r, errNotAsked
}

func (*editor) WaitForTerminalExit(context.Context, acp.WaitForTerminalExitRequest) (r acp.WaitForTerminalExitResponse, err error) {
	return r, errNotAsked
}

// checkNobodyWorksIn fails if a process of this machine has its working directory in a folder.
func checkNobodyWorksIn(t *testing.T, dir string) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Error(err)
	}
	for _, p := range procs {
		if at, err := os.Readlink(p); err == nil && strings.HasPrefix(at, dir) {
			t.Errorf("process %s is left in %s", p, at)
		}
	}
}
