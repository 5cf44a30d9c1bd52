package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// TestBadMessages sends raw lines and compares the code of the answer.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		line string
		code int
		ends bool
	}{
		"no JSON":          {`hello`, CodeParse, false},
		"no version":       {`{"id":1,"method":"x"}`, CodeInvalidRequest, false},
		"nothing":          {`{"jsonrpc":"2.0"}`, CodeInvalidRequest, false},
		"an object as id":  {`{"jsonrpc":"2.0","id":{},"method":"x"}`, CodeInvalidRequest, false},
		"unknown method":   {`{"jsonrpc":"2.0","id":1,"method":"x"}`, CodeNoMethod, false},
		"a list of params": {`{"jsonrpc":"2.0","id":1,"method":"get_api_key","params":[1]}`, CodeInvalidParams, false},
		"no token":         {`{"jsonrpc":"2.0","id":1,"method":"get_api_key"}`, CodeToken, false},
		"a long one":       {`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", MaxMessage) + `"}`, CodeLimit, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := net.Pipe()
			c := NewConn(t.Context(), a, NewService(Config{}).Handler("s"))
			defer func() { _, _ = c.Close(), b.Close() }()
			go func() { _, _ = io.WriteString(b, tt.line+"\n") }()
			var m message
			in := json.NewDecoder(b)
			if err := in.Decode(&m); err != nil || m.Error == nil || m.Error.Code != tt.code {
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
	a, b := net.Pipe()
	c := NewConn(t.Context(), a, func(context.Context, string, json.RawMessage) (any, error) { <-release; return nil, nil })
	defer func() { _, _ = c.Close(), b.Close() }()
	go func() { _, _ = io.WriteString(b, strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"x"}`+"\n", 2)) }()
	var m message
	if err := json.NewDecoder(b).Decode(&m); err != nil || m.Error == nil || m.Error.Code != CodeInvalidRequest {
		t.Errorf("answer %+v, %v", m, err)
	}
	close(release)
}
