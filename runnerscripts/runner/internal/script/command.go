package script

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// mostOutput is how much of each stream of a command is kept.
	mostOutput = 64 << 10
	// leftOpen is how long output is read after a command has ended while orphans hold the
	// pipe.
	leftOpen = time.Second
)

// command is the tool that runs a command in the workspace.
type command struct {
	Command []string `json:"command"`
}

// commandOutput is the rawOutput of a command.
type commandOutput struct {
	ExitCode  int    `json:"exit_code"`        // after a signal, 128 plus its number
	Signal    string `json:"signal,omitempty"` // the signal that ended it
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"`
}

func (command) name() string { return toolRun }

func (t command) call(id string) runnerscripts.ToolCall {
	quoted := make([]string, len(t.Command))
	for i, a := range t.Command {
		quoted[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\") {
			quoted[i] = strconv.Quote(a)
		}
	}
	return runnerscripts.ToolCall{
		ToolCallID: id, Title: strings.Join(quoted, " "), Name: toolRun,
		Kind: runnerscripts.ToolExecute, RawInput: mustMarshal(t),
	}
}

func (command) withInput(raw json.RawMessage) (tool, error) {
	var t command
	if err := strictInput(raw, &t); err != nil {
		return nil, err
	}
	if len(t.Command) == 0 || t.Command[0] == "" {
		return nil, errors.New(`"command" is empty`)
	}
	return t, nil
}

// use runs the command; an interrupt kills its process group.
func (t command) use(ctx context.Context, c *conversation) runnerscripts.ToolCall {
	var stdout, stderr boundedBuffer
	cmd := exec.CommandContext(ctx, t.Command[0], t.Command[1:]...)
	cmd.Dir, cmd.Env = c.paths.Workspace, c.env
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = leftOpen
	err := cmd.Run()
	if ctx.Err() != nil {
		return failed("interrupted")
	}
	if cmd.ProcessState == nil {
		return failed(err.Error())
	}
	out := commandOutput{
		ExitCode: cmd.ProcessState.ExitCode(), Stdout: stdout.text(), Stderr: stderr.text(),
		Truncated: stdout.dropped || stderr.dropped,
	}
	signal := 0
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		signal = int(ws.Signal())
		out.ExitCode, out.Signal = 128+signal, ws.Signal().String()
	}
	status := runnerscripts.ToolCompleted
	if out.ExitCode != 0 {
		status = runnerscripts.ToolFailed
	}
	return runnerscripts.ToolCall{
		Status: status, Content: textContent(out.Stdout + out.Stderr), RawOutput: mustMarshal(out), ExitCode: out.ExitCode, Signal: signal,
	}
}

// boundedBuffer keeps the first mostOutput bytes.
type boundedBuffer struct {
	buf     []byte
	dropped bool
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	keep := min(len(p), mostOutput-len(b.buf))
	b.buf = append(b.buf, p[:keep]...)
	b.dropped = b.dropped || keep < len(p)
	return len(p), nil
}

// text returns what was kept, without the part of a character at the cut.
func (b *boundedBuffer) text() string {
	kept := b.buf
	if b.dropped {
		for i := 0; i < utf8.UTFMax && len(kept) > 0; i++ {
			if r, size := utf8.DecodeLastRune(kept); r != utf8.RuneError || size != 1 {
				break
			}
			kept = kept[:len(kept)-1]
		}
	}
	return strings.ToValidUTF8(string(kept), "\uFFFD")
}
