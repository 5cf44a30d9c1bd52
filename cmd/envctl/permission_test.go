package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// person simulates a user at a terminal who answers an answerer.
type person struct {
	t      *testing.T
	keys   *os.File
	answer *answerer
	screen *hooked       // what is printed, without the echo of the keys
	shown  chan struct{} // a question is on the screen
}

func newPerson(t *testing.T) *person {
	t.Helper()
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		keys.Close()
		tty.Close()
	})
	p := &person{t: t, keys: keys, shown: make(chan struct{}, 100)}
	p.screen = &hooked{hook: func(text string) bool {
		if strings.HasSuffix(text, "instead: ") {
			p.shown <- struct{}{}
		}
		return true
	}}
	a := newApp(tty, io.Discard, p.screen)
	if p.answer, err = a.newAnswerer(permissionAsk); err != nil {
		t.Fatal(err)
	}
	p.answer.printer = a.newPrinter(false)
	return p
}

// ask sends a request and returns the channel of its decision.
func (p *person) ask(ctx context.Context, title string) <-chan runnerscripts.PermissionDecision {
	decided := make(chan runnerscripts.PermissionDecision, 1)
	go func() {
		decided <- p.answer.decide(ctx, runnerscripts.PermissionRequest{ToolCall: runnerscripts.ToolCall{Title: title}})
	}()
	return decided
}

func (p *person) typeIn(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.keys, text); err != nil {
		p.t.Fatal(err)
	}
}

// seen returns what was printed. Call it only when no question is open.
func (p *person) seen() string {
	p.screen.mu.Lock()
	defer p.screen.mu.Unlock()
	return p.screen.buf.String()
}

func TestAnAnswerIsForTheQuestionThatWasShown(t *testing.T) {
	for name, before := range map[string]func(*person){
		"typed ahead":      func(p *person) { p.typeIn("y\n") },
		"several lines":    func(p *person) { p.typeIn("y\n1\ny\n") },
		"line without end": func(p *person) { p.typeIn("y") },
		"end of input":     func(p *person) { p.typeIn("\x04") },
		"typed twice":      func(p *person) { firstAnswered(p, "y\ny\n") },
		"question withdrawn": func(p *person) {
			withdrawn(p, "")
			p.typeIn("y\n")
		},
		"question withdrawn in the midst": func(p *person) { withdrawn(p, "y") },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			before(p)
			decided := p.ask(ctx, "rm -rf /")
			<-p.shown
			p.typeIn("q\n") // invalid answer: the question is asked again
			select {
			case <-p.shown:
			case d := <-decided:
				t.Fatalf("decided without an answer: %+v\n%s", d, p.seen())
			}
			p.typeIn("n\n")
			if d := <-decided; d.Kind != runnerscripts.RejectOnce || d.Message != "" {
				t.Errorf("decided %+v\n%s", d, p.seen())
			}
			if s := p.seen(); strings.Count(s, "typed before this question was not used") != 1 {
				t.Errorf("what was not used is not told once:\n%s", s)
			}
		})
	}
}

// firstAnswered asks a question and answers it with keys, which must allow it.
func firstAnswered(p *person, keys string) {
	p.t.Helper()
	decided := p.ask(p.t.Context(), "go test ./...")
	<-p.shown
	p.typeIn(keys)
	if d := <-decided; d.Kind != runnerscripts.AllowOnce {
		p.t.Errorf("decided %+v\n%s", d, p.seen())
	}
}

// withdrawn asks a question, types keys, and withdraws the question.
func withdrawn(p *person, keys string) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	decided := p.ask(ctx, "go test ./...")
	<-p.shown
	p.typeIn(keys)
	cancel()
	if d := <-decided; d.Kind != "" || d.OptionID != "" {
		p.t.Errorf("decided %+v\n%s", d, p.seen())
	}
	if s := p.seen(); !strings.HasSuffix(s, "instead: \nwithdrawn: an answer is no longer awaited\n") {
		p.t.Errorf("that the question is withdrawn is not told:\n%s", s)
	}
}

func TestNoAnswerIsPrintedForAQuestionThatWasNotShown(t *testing.T) {
	p := newPerson(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d := <-p.ask(ctx, "go test ./..."); d.Kind != "" || p.seen() != "" {
		t.Errorf("decided %+v\n%s", d, p.seen())
	}
}

func TestNoQuestionIsAskedAfterTheEndOfTheInput(t *testing.T) {
	for name, keys := range map[string]string{"at once": "\x04", "after a line without end": "yy\x04\x04"} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			first := p.ask(t.Context(), "go test ./...")
			<-p.shown
			p.typeIn(keys)
			for _, decided := range []<-chan runnerscripts.PermissionDecision{first, p.ask(t.Context(), "go vet ./...")} {
				if d := <-decided; d.Kind != runnerscripts.RejectOnce || d.Message != "The user has left." {
					t.Errorf("decided %+v\n%s", d, p.seen())
				}
			}
		})
	}
}

const asksTwice = `{"turns":[{"steps":[
	{"ask":{"write":{"path":"first.txt","content":"x"}}},{"ask":{"write":{"path":"second.txt","content":"x"}}}]}]}`

func TestAnAnswerThatIsTypedTwiceCountsOnce(t *testing.T) {
	patch := filepath.Join(t.TempDir(), "patch")
	s := startOnTerminal(t, "run", "--scenario", file(t, "ask.json", asksTwice), "--patch", patch, "go")
	s.wait("instead: ")
	s.typeIn("y\ry\r")
	s.wait("not used")
	s.wait("instead: ")
	s.typeIn("n\r")
	if code := s.end(); code != exitOK {
		t.Errorf("exit status %d:\n%s", code, s.seen.String())
	}
	diff, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	if d := string(diff); !strings.Contains(d, "b/first.txt") || strings.Contains(d, "b/second.txt") {
		t.Errorf("the patch is\n%s", d)
	}
}

func TestAnswersThatAreNotTypedAreTakenInOrder(t *testing.T) {
	alone(t)
	for answers, second := range map[string]bool{"y\nn\n": false, "y\ny\ny\n": true, "y\n": false} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(answers), &out, &errOut,
			[]string{"run", "--permission", "ask", "--scenario", file(t, "ask.json", asksTwice), "--patch", "-", "go"})
		d := out.String()
		if code != exitOK || !strings.Contains(d, "b/first.txt") || strings.Contains(d, "b/second.txt") != second {
			t.Errorf("%q: exit status %d\n%s%s", answers, code, &out, &errOut)
		}
	}
}

func TestADenialWithoutAnAnswerSaysSo(t *testing.T) {
	var errOut bytes.Buffer
	show := newApp(nil, io.Discard, &errOut).newPrinter(false)
	req := runnerscripts.PermissionRequest{ID: "1", ToolCall: runnerscripts.ToolCall{Title: "go test ./..."}}
	show.question(permissionPrompt(req, "", false))
	show.answered()
	for _, ev := range []struct {
		typ     runnerscripts.EventType
		payload any
	}{
		{runnerscripts.TypePermissionRequest, req},
		{runnerscripts.TypePermissionResolved, runnerscripts.PermissionResolved{ID: "1", Kind: runnerscripts.RejectOnce, Reason: "timeout"}},
	} {
		payload, err := json.Marshal(ev.payload)
		if err != nil {
			t.Fatal(err)
		}
		if err := show.event(runnerscripts.Event{Type: ev.typ, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	if s := errOut.String(); !strings.Contains(s, "denied: go test ./...; there was no answer in time\n") {
		t.Errorf("standard error is %q", s)
	}
}

// The flags help only if this program denies without asking.
func TestADenialNamesTheFlagOnlyWhereItHelps(t *testing.T) {
	req := runnerscripts.PermissionRequest{ID: "1", ToolCall: runnerscripts.ToolCall{Title: "go test ./..."}}
	for policy, helps := range map[string]bool{permissionDeny: true, permissionAllow: false, "of another program": false} {
		var errOut bytes.Buffer
		a := newApp(nil, io.Discard, &errOut)
		show := a.newPrinter(false)
		if policy != "of another program" {
			answer, err := a.newAnswerer(policy)
			if err != nil {
				t.Fatal(err)
			}
			answer.printer = show
			answer.decide(t.Context(), req)
		}
		for _, ev := range []runnerscripts.Event{
			happens(t, runnerscripts.TypePermissionRequest, req),
			happens(t, runnerscripts.TypePermissionResolved, runnerscripts.PermissionResolved{ID: "1", Kind: runnerscripts.RejectOnce}),
		} {
			if err := show.event(ev); err != nil {
				t.Fatal(err)
			}
		}
		if s := errOut.String(); !strings.Contains(s, "denied: go test") || strings.Contains(s, "--permission") != helps {
			t.Errorf("%s: standard error is %q", policy, s)
		}
	}
}
