package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// pipe returns the two sides of a connection.
func pipe(t *testing.T, left, right Handler) (*Conn, *Conn) {
	t.Helper()
	a, b := net.Pipe()
	l, r := NewConn(t.Context(), a, left), NewConn(t.Context(), b, right)
	t.Cleanup(func() { _, _ = l.Close(), r.Close() })
	return l, r
}

func none(context.Context, string, json.RawMessage) (any, error) {
	return nil, Errorf(CodeNoMethod, "none")
}

// code returns the code of an error answer.
func code(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 0
}

func TestBothSidesAskAtTheSameTime(t *testing.T) {
	t.Parallel()
	var left, right *Conn
	ready := make(chan struct{})
	echo := func(_ context.Context, _ string, p json.RawMessage) (any, error) { return p, nil }
	left, right = pipe(t, echo, func(ctx context.Context, method string, p json.RawMessage) (any, error) {
		<-ready
		var back json.RawMessage // a request that is answered by a request of its own
		err := right.Call(ctx, "back", p, &back)
		return back, err
	})
	close(ready)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			var got int
			if err := left.Call(t.Context(), "there", i, &got); err != nil || got != i {
				t.Errorf("request %d: %d, %v", i, got, err)
			}
		})
	}
	all.Wait()
}

func TestACancelledRequestIsCancelledAtTheOtherSide(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	left, _ := pipe(t, none, func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
		close(begun)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() { <-begun; cancel(why) }()
	if err := left.Call(ctx, "wait", nil, nil); !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
	<-ended
}

// raw returns a connection, and how the other side reads and sends its messages.
func raw(t *testing.T, handle Handler) (c *Conn, in *json.Decoder, send func(lines ...string)) {
	t.Helper()
	a, b := net.Pipe()
	c = NewConn(t.Context(), a, handle)
	t.Cleanup(func() { _, _ = c.Close(), b.Close() })
	return c, json.NewDecoder(b), func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if _, err := io.WriteString(b, line+"\n"); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTheAnswerToACancelledRequestSaysSo(t *testing.T) {
	t.Parallel()
	_, in, send := raw(t, func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	go send(`{"jsonrpc":"2.0","id":7,"method":"wait"}`, `{"jsonrpc":"2.0","method":"$/cancel_request","params":{"id":7}}`)
	var m message
	if err := in.Decode(&m); err != nil || string(m.ID) != "7" || m.Error == nil || m.Error.Code != -32800 {
		t.Errorf("answer %+v, %v", m, err)
	}
}

// A notification has no answer, and the first of several answers to a request counts.
func TestMessagesThatNothingWaitsFor(t *testing.T) {
	t.Parallel()
	c, in, send := raw(t, none)
	for _, want := range []string{"first", "again"} {
		got := make(chan string, 1)
		go func() {
			var result string
			if err := c.Call(t.Context(), "x", nil, &result); err != nil {
				t.Error(err)
			}
			got <- result
		}()
		var m message
		if err := in.Decode(&m); err != nil || m.Method != "x" {
			t.Fatalf("%+v, %v", m, err)
		}
		id := string(m.ID)
		send(`{"jsonrpc":"2.0","method":"none"}`, `{"jsonrpc":"2.0","id":"of nothing","result":0}`)
		for _, text := range []string{want, "second", "third"} {
			send(`{"jsonrpc":"2.0","id":` + id + `,"result":"` + text + `"}`)
		}
		if result := <-got; result != want {
			t.Errorf("the result is %q, want %q", result, want)
		}
	}
}

func TestAMessageThatIsTooLongIsNotSent(t *testing.T) {
	t.Parallel()
	left, _ := pipe(t, none, func(context.Context, string, json.RawMessage) (any, error) { return nil, nil })
	if err := left.Call(t.Context(), "x", strings.Repeat("x", MaxMessage), nil); code(err) != CodeLimit {
		t.Errorf("error %v", err)
	}
	if err := left.Call(t.Context(), "x", nil, nil); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A side that does not read holds up the other one for half a minute, and not for ever.
func TestASideThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := raw(t, none)
		began := time.Now()
		if err := c.Call(t.Context(), "x", nil, nil); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 30*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		<-c.Done() // it may have sent a part of a line
	})
}

// The other side gets an error for an answer that is too long, and the connection stays.
func TestAnAnswerThatIsTooLong(t *testing.T) {
	t.Parallel()
	left, _ := pipe(t, none, func(_ context.Context, _ string, p json.RawMessage) (any, error) {
		return strings.Repeat("x", MaxMessage/len(p)), nil
	})
	if err := left.Call(t.Context(), "x", 1, nil); code(err) != CodeLimit {
		t.Errorf("error %v", err)
	}
	if err := left.Call(t.Context(), "x", 10, nil); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// The forms of a prompt and its result are those that executors in other languages know.
func TestTheFormOfAPrompt(t *testing.T) {
	t.Parallel()
	const prompt = `{"session_token":"t","agentic_tool":"claude-code","prompt":"p","cwd":"/w","tools":["Read"],"permission_mode":"default","timeout_ms":600000}`
	left, _ := pipe(t, none, func(_ context.Context, method string, p json.RawMessage) (any, error) {
		if method != "execute_prompt" || string(p) != prompt {
			t.Errorf("%s %s", method, p)
		}
		return json.RawMessage(`{"status":"completed","message_count":4,"token_usage":{"input_tokens":1,"output_tokens":2}}`), nil
	})
	got, err := ExecutePrompt(t.Context(), left, Prompt{
		SessionToken: "t", AgenticTool: "claude-code", Prompt: "p", CWD: "/w", Tools: []string{"Read"}, PermissionMode: "default", TimeoutMS: 600_000,
	})
	if want := (Result{"completed", 4, TokenUsage{1, 2}}); err != nil || got != want {
		t.Errorf("result %+v, %v", got, err)
	}
}

func TestTheEndOfAConnectionEndsItsRequests(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	left, right := pipe(t, none, func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	go func() { <-begun; _ = right.Close() }()
	if err := left.Call(t.Context(), "wait", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
	<-left.Done()
	if err := left.Call(t.Context(), "late", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a late one: %v", err)
	}
}

// The handler of a notification holds up the reading, which would otherwise see the end of the connection.
func TestCloseEndsTheHandlerOfANotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, right := pipe(t, none, func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err := left.Notify("wait", nil); err != nil {
			t.Fatal(err)
		}
		if err := right.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestBadMessages sends raw lines and compares the code of the answer, in numbers: executors have no constants.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		line string
		code int
		ends bool
	}{
		"no JSON":          {`hello`, -32700, false},
		"no version":       {`{"id":1,"method":"x"}`, -32600, false},
		"nothing":          {`{"jsonrpc":"2.0"}`, -32600, false},
		"an object as id":  {`{"jsonrpc":"2.0","id":{},"method":"x"}`, -32600, false},
		"unknown method":   {`{"jsonrpc":"2.0","id":1,"method":"x"}`, -32601, false},
		"a list of params": {`{"jsonrpc":"2.0","id":1,"method":"get_api_key","params":[1]}`, -32602, false},
		"no token":         {`{"jsonrpc":"2.0","id":1,"method":"get_api_key"}`, -32001, false},
		"a broken host":    {`{"jsonrpc":"2.0","id":1,"method":"break"}`, -32603, false},
		"a long one":       {`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", MaxMessage) + `"}`, -32004, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := net.Pipe()
			serve := NewService(Config{}).Handler("s")
			c := NewConn(t.Context(), a, func(ctx context.Context, method string, p json.RawMessage) (any, error) {
				if method == "break" {
					return nil, errors.New("broken")
				}
				return serve(ctx, method, p)
			})
			defer func() { _, _ = c.Close(), b.Close() }()
			go func() { _, _ = io.WriteString(b, tt.line+"\n") }()
			id := "null" // of a message whose ID is not known
			if strings.Contains(tt.line, `"id":1`) && !tt.ends {
				id = "1"
			}
			var m message
			in := json.NewDecoder(b)
			if err := in.Decode(&m); err != nil || m.Error == nil || m.Error.Code != tt.code || string(m.ID) != id {
				t.Fatalf("answer %+v, %v", m, err)
			}
			if tt.ends {
				<-c.Done()
				return
			}
			go func() { _, _ = io.WriteString(b, `{"jsonrpc":"2.0","id":"again","method":"y"}`+"\n") }()
			if err := in.Decode(&m); err != nil || string(m.ID) != `"again"` {
				t.Errorf("after it: %+v, %v", m, err)
			}
		})
	}
}

// Only root may start programs as another user.
func TestAMissingRightIsAnError(t *testing.T) {
	t.Parallel()
	if as, err := findAccount(map[string]string{"ann": "nobody"}, "ann", account{uid: 4242, gid: 4242}); !errors.Is(err, ErrUser) || !strings.Contains(err.Error(), "only root") {
		t.Errorf("%+v, %v", as, err)
	}
	if as, err := findAccount(map[string]string{"ann": "nobody"}, "ann", account{}); err != nil || as.name != "nobody" || as.uid == 0 {
		t.Errorf("as root: %+v, %v", as, err)
	}
}

func TestRequestsOverTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	left, _ := pipe(t, none, func(context.Context, string, json.RawMessage) (any, error) { <-release; return nil, nil })
	results := make(chan error, MaxCalls+1)
	for range MaxCalls + 1 {
		go func() { results <- left.Call(t.Context(), "x", nil, nil) }()
	}
	if err := <-results; code(err) != CodeLimit {
		t.Errorf("error %v", err)
	}
	close(release)
	for range MaxCalls {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func TestAnIDThatStillRunsIsRefused(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	_, in, send := raw(t, func(context.Context, string, json.RawMessage) (any, error) { <-release; return nil, nil })
	const request = `{"jsonrpc":"2.0","id":1,"method":"x"}`
	go send(request, request)
	var m message
	if err := in.Decode(&m); err != nil || m.Error == nil || m.Error.Code != CodeInvalidRequest {
		t.Errorf("answer %+v, %v", m, err)
	}
	close(release)
}
