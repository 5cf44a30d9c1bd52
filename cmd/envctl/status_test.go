package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// display emulates a terminal.
type display struct {
	t        *testing.T
	pty, tty *os.File
	rows     []string
	column   int
}

func newDisplay(t *testing.T, columns uint16) *display {
	t.Helper()
	t.Setenv("TERM", "xterm")
	p, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(); tty.Close() })
	if err := pty.Setsize(p, &pty.Winsize{Rows: 24, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	return &display{t: t, pty: p, tty: tty, rows: []string{""}}
}

// text returns what the terminal shows of the output so far.
func (d *display) text() string {
	d.t.Helper()
	const end = "\a"
	if _, err := d.tty.WriteString(end); err != nil {
		d.t.Fatal(err)
	}
	var all []byte
	for !bytes.HasSuffix(all, []byte(end)) {
		buf := make([]byte, 4096)
		n, err := d.pty.Read(buf)
		if err != nil {
			d.t.Fatal(err)
		}
		all = append(all, buf[:n]...)
	}
	d.show(string(all[:len(all)-len(end)]))
	return strings.Join(d.rows, "\n")
}

func (d *display) show(text string) {
	for text != "" {
		row := &d.rows[len(d.rows)-1]
		switch {
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexAny(text, "mK")
			if text[end] == 'K' {
				*row = (*row)[:d.column]
			}
			text = text[end+1:]
			continue
		case text[0] == '\r':
			d.column = 0
		case text[0] == '\n':
			d.rows = append(d.rows, strings.Repeat(" ", d.column))
		default:
			*row = (*row)[:d.column] + text[:1]
			d.column++
		}
		text = text[1:]
	}
}

// shows fails unless the terminal shows want.
func (d *display) shows(want string) {
	d.t.Helper()
	if got := d.text(); got != want {
		d.t.Errorf("the terminal shows\n%s\nwant\n%s", got, want)
	}
}

// happens returns an event with a payload.
func happens(t *testing.T, typ runnerscripts.EventType, payload any) runnerscripts.Event {
	t.Helper()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return runnerscripts.Event{Type: typ, Payload: raw}
}

func chunk(t *testing.T, block, text string) runnerscripts.Event {
	return happens(t, runnerscripts.TypeAgentMessage, runnerscripts.ContentChunk{
		BlockID: block, Content: runnerscripts.Content{Type: "text", Text: text},
	})
}

func TestTheStatusSaysWhatGoesOn(t *testing.T) {
	d := newDisplay(t, 60)
	synctest.Test(t, func(t *testing.T) {
		a := newApp(nil, d.tty, d.tty)
		defer a.status.Off()
		show := a.newPrinter(false)
		event := func(ev runnerscripts.Event) {
			t.Helper()
			if err := show.event(ev); err != nil {
				t.Fatal(err)
			}
		}
		passes := func(seconds time.Duration) {
			time.Sleep(seconds * time.Second)
			synctest.Wait()
		}
		event(happens(t, runnerscripts.TypeQueryStarted, runnerscripts.QueryStarted{}))
		passes(1)
		d.shows("")
		passes(1)
		d.shows("waiting for the model 2s")
		passes(70)
		d.shows("waiting for the model 1m12s")

		tool := runnerscripts.ToolCall{ToolCallID: "1", Title: "go test", Status: runnerscripts.ToolInProgress}
		event(happens(t, runnerscripts.TypeToolCall, tool))
		d.shows("→ go test\n")
		passes(8)
		d.shows("→ go test\nrunning go test 8s")
		second := runnerscripts.ToolCall{ToolCallID: "2", Title: "ls", Status: runnerscripts.ToolInProgress}
		event(happens(t, runnerscripts.TypeToolCall, second))
		passes(3)
		d.shows("→ go test\n→ ls\nrunning ls 3s")
		second.Status = runnerscripts.ToolCompleted
		event(happens(t, runnerscripts.TypeToolCallUpdate, second))
		passes(1)
		d.shows("→ go test\n→ ls\nrunning go test 12s")
		tool.Status = runnerscripts.ToolCompleted
		event(happens(t, runnerscripts.TypeToolCallUpdate, tool))

		// The status is not drawn below a question.
		show.question(prompt{title: "Allow?", rows: func(*questionText) {}, line: "y or n: "})
		passes(9)
		fmt.Fprintln(a.err, "a log record")
		passes(9)
		d.shows("→ go test\n→ ls\nAllow?\ny or n: a log record\n")
		show.answered()

		// When the agent pauses, its text so far is printed.
		event(chunk(t, "m", "Half a "))
		d.shows("→ go test\n→ ls\nAllow?\ny or n: a log record\n")
		passes(2)
		d.shows("→ go test\n→ ls\nAllow?\ny or n: a log record\nHalf a\nwaiting for the model 2s")
		event(happens(t, runnerscripts.TypeQueryCompleted, runnerscripts.QueryCompleted{StopReason: runnerscripts.StopEndTurn}))
		passes(9)
		d.shows("→ go test\n→ ls\nAllow?\ny or n: a log record\nHalf a\ndone in 0.0 s\n")
	})
}

// The status takes one row, and control characters in the name of a tool are only text.
func TestTheStatusIsOneRow(t *testing.T) {
	d := newDisplay(t, 30)
	synctest.Test(t, func(t *testing.T) {
		a := newApp(nil, d.tty, d.tty)
		defer a.status.Off()
		defer a.status.Busy("running \x1b[2J\n" + strings.Repeat("long ", 20))()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		d.shows(`running \x1b[2J\nlong lon… 2s`)
	})
}

// Piped text may reach the same terminal. The status is neither drawn in its lines nor erases
// them.
func TestTheStatusKeepsClearOfWhatIsPiped(t *testing.T) {
	d := newDisplay(t, 80)
	synctest.Test(t, func(t *testing.T) {
		a := newApp(nil, struct{ io.Writer }{d.tty}, d.tty) // as through tee
		defer a.status.Off()
		show := a.newPrinter(false)
		for _, step := range []struct{ text, want string }{
			{"Half", "Half"},
			{" a line\n", "Half a line\nwaiting for the model 2s"},
			{"More", "Half a line\nMore"},
		} {
			if err := show.event(chunk(t, "m", step.text)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			d.shows(step.want)
		}
	})
}

// A write that waits for the reader of a pipe does not block the terminal.
func TestAFullPipeDoesNotHoldUpTheTerminal(t *testing.T) {
	d := newDisplay(t, 80)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	a := newApp(nil, w, d.tty)
	defer a.status.Off()
	piped, printed := make(chan error, 1), make(chan error, 1)
	go func() { piped <- a.out.Print(term.Plain(strings.Repeat("x", 8<<20))) }()
	defer func() { r.Close(); <-piped }()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go func() { printed <- a.err.Println(term.Plain("interrupting")) }()
	select {
	case err := <-printed:
		if err != nil {
			t.Error(err)
		}
		d.shows("interrupting\n")
	case <-time.After(patience):
		t.Error("standard error waits for the reader of standard output")
		r.Close()
		<-printed
	}
}

// Text in a file does not reach the terminal.
func TestTheStatusIsDrawnBesideAFile(t *testing.T) {
	d := newDisplay(t, 80)
	for _, name := range []string{filepath.Join(t.TempDir(), "out.txt"), os.DevNull} {
		out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		d.rows, d.column = []string{""}, 0
		synctest.Test(t, func(t *testing.T) {
			a := newApp(nil, out, d.tty)
			defer a.status.Off()
			defer a.status.Busy("working")()
			if err := a.out.Print(term.Plain("Half")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			d.shows("working 2s")
		})
		d.shows("") // off has erased it
	}
}

// Every command that may take long says what it does.
func TestCommandsThatTakeLongAreKnown(t *testing.T) {
	quick := []string{"acp", "agents", "completion", "credentials", "exec", "executors", "help", "image", "log", "logs", "mcp", "permissions", "profiles", "sessions", "version", "watch"}
	for _, cmd := range newApp(nil, io.Discard, io.Discard).newRootCmd().Commands() {
		if name := cmd.Name(); takesLong("envctl "+name) == "" && !slices.Contains(quick, name) {
			t.Errorf("nothing says what %s does while it takes long", name)
		}
	}
}

func TestNoStatusIsShown(t *testing.T) {
	for name, tt := range map[string]struct {
		term string
		args []string
	}{
		"a terminal that cannot erase": {"dumb", nil},
		"JSON":                         {"xterm", []string{"version", "--json"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisplay(t, 80)
			t.Setenv("TERM", tt.term)
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				a := newApp(nil, &out, d.tty)
				if root := a.newRootCmd(); tt.args != nil {
					root.SetArgs(tt.args)
					root.SetOut(&out)
					if err := root.ExecuteContext(t.Context()); err != nil {
						t.Error(err)
					}
				}
				defer a.status.Busy("working")()
				time.Sleep(time.Minute)
				synctest.Wait()
				d.shows("")
			})
		})
	}
}

// End-to-end test in real time: the tool ends after the status was seen.
func TestARunningToolIsSeen(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	scenario := file(t, "slow.json", `{"turns":[{"steps":[{"run":["sh","-c","until [ -e `+gate+` ]; do sleep 0.05; done"]},{"text":"over"}]}]}`)
	s := startOnTerminal(t, "run", "--scenario", scenario, "go")
	s.wait("running sh")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Error(err)
	}
	s.wait("over")
	if code := s.end(); code != exitOK || strings.Contains(s.seen.String(), "running") {
		t.Errorf("exit status %d; the screen shows:\n%s", code, &s.seen)
	}
}
