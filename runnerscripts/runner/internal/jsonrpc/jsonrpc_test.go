package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// program starts a shell script as the program. It passes lines that are no replies to other.
func program(t *testing.T, script string, other func(m Message)) *Peer {
	t.Helper()
	p, err := Start(child.Command{Args: []string{"/bin/sh", "-c", script}}, "2.0", func(p *Peer, line []byte) {
		var m Message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Errorf("the program said %q", line)
			return
		}
		if m.Method == "" {
			p.Replied(m)
			return
		}
		other(m)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		want         string // of the result
		code         int    // of the error
		text         string // in the error
		ended        bool
	}{
		{"a reply", `read l; echo '{"id":1,"result":{"x":"y"}}'; read l`, "y", 0, "", false},
		{"a reply without a result", `read l; echo '{"id":1}'; read l`, "", 0, "", false},
		{"replies to nobody come first", `read l; echo '{"id":9,"result":{}}'; echo '{"id":null,"error":{"code":1}}'; echo '{"id":1,"result":{"x":"y"}}'; read l`, "y", 0, "", false},
		{"an error", `read l; echo '{"id":1,"error":{"code":-7,"message":"no luck","data":[1]}}'; read l`, "", -7, "ask: no luck (code -7)", false},
		{"a result of another form", `read l; echo '{"id":1,"result":[1]}'; read l`, "", 0, "the reply to ask is not understood", false},
		{"a program that ends first", `read l; echo why >&2; exit 3`, "", 0, "exit status 3: why", true},
		{"a program that replies and ends", `read l; echo '{"id":1,"result":{"x":"y"}}'`, "y", 0, "", false},
		{"a program that does not read", `exec <&-; echo '{"method":"ready"}'; sleep 1000`, "", 0, "the program has ended", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ready := make(chan Message, 1)
			p := program(t, tt.script, func(m Message) { ready <- m })
			if strings.Contains(tt.script, "ready") {
				<-ready
				// A program that another test is starting may hold the closed input for a moment.
				for p.Notify("anything", nil) == nil {
				}
			}
			var result struct{ X string }
			err := p.Call(t.Context(), Request{Method: "ask", Params: map[string]int{"a": 1}, Result: &result})
			if result.X != tt.want || (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%q, %v", result.X, err)
			}
			if refused, ok := errors.AsType[*Error](err); ok != (tt.code != 0) || ok && (refused.Code != tt.code || string(refused.Data) != "[1]") {
				t.Errorf("the error is %+v", refused)
			}
			if errors.Is(err, ErrEnded) != tt.ended {
				t.Errorf("ended: %v", err)
			}
		})
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := program(t, `while read l; do :; done`, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	err := p.Call(ctx, Request{Method: "ask", Sent: func() { cancel(why) }})
	if !errors.Is(err, why) {
		t.Error(err)
	}
}

func TestAReplyIsTakenBeforeTheNextLine(t *testing.T) {
	t.Parallel()
	var order []string
	noted := make(chan struct{})
	p := program(t, `read l; echo '{"id":1}'; echo '{"method":"after"}'; read l`, func(m Message) {
		order = append(order, m.Method)
		close(noted)
	})
	if err := p.Call(t.Context(), Request{Method: "ask", Then: func() { order = append(order, "reply") }}); err != nil {
		t.Fatal(err)
	}
	<-noted
	if strings.Join(order, " ") != "reply after" {
		t.Errorf("the order is %q", order)
	}
}

func TestSentMessages(t *testing.T) {
	t.Parallel()
	lines := make(chan string, 10)
	p, err := Start(child.Command{Args: []string{"/bin/cat"}}, "2.0", func(_ *Peer, line []byte) { lines <- string(line) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	_, serr := p.Send("ask", []int{1}, nil)
	err = errors.Join(serr, p.Notify("tell", nil), p.Answer(json.RawMessage(`"q"`), map[string]int{"a": 1}), p.Refuse(json.RawMessage("4"), MethodNotFound, "no"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ask","params":[1]}`,
		`{"jsonrpc":"2.0","method":"tell"}`,
		`{"jsonrpc":"2.0","id":"q","result":{"a":1}}`,
		`{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"no"}}`,
	} {
		if got := <-lines; got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
	}
}
