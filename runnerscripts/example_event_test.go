package runnerscripts_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The payload of an event is a pointer to the struct that belongs to its type.
func ExampleEvent_Value() {
	for _, line := range []string{
		`{"type":"tool_call","payload":{"toolCallId":"1","title":"go test ./...","kind":"execute"}}`,
		`{"type":"query_completed","payload":{"stop_reason":"end_turn"}}`,
	} {
		ev, err := runnerscripts.DecodeEvent([]byte(line))
		if err != nil {
			log.Fatal(err)
		}
		switch v := ev.Value().(type) {
		case *runnerscripts.ToolCall:
			fmt.Println(v.Kind, v.Title)
		case *runnerscripts.QueryCompleted:
			fmt.Println(v.StopReason)
		}
	}
	// Output:
	// execute go test ./...
	// end_turn
}

// An event of an unknown type is passed through.
func ExampleDecodeEvent() {
	ev, err := runnerscripts.DecodeEvent([]byte(`{"type":"from_the_future","answer":42}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ev.Type, string(ev.Payload), ev.Value() == nil)
	// Output: from_the_future {"type":"from_the_future","answer":42} true
}

// A payload can be decoded into a struct of the caller's own. The error says what is wrong with the
// payload.
func ExamplePayload() {
	ev := runnerscripts.Event{Type: runnerscripts.TypeLog, Payload: []byte(`{"level":"warn","message":"slow"}`)}
	l, err := runnerscripts.Payload[runnerscripts.Log](ev)
	fmt.Println(l.Level, l.Message, err)
	ev.Payload = []byte(`"slow"`)
	_, err = runnerscripts.Payload[runnerscripts.Log](ev)
	fmt.Println(err != nil)
	// Output:
	// warn slow <nil>
	// true
}

// A script prints events, and its result last.
func ExampleEncoder() {
	enc := runnerscripts.NewEncoder(os.Stdout)
	for _, v := range []any{
		runnerscripts.Control{Type: runnerscripts.ControlInterrupt, ID: "q1"},
		runnerscripts.Result{Type: runnerscripts.TypeResult, OK: true},
	} {
		if err := enc.Encode(v); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// {"type":"interrupt","id":"q1"}
	// {"type":"result","ok":true}
}

// A script that gets a request of another version refuses it.
func ExampleDecodeRequest() {
	_, err := runnerscripts.DecodeRequest[runnerscripts.QueryRequest]([]byte(`{"protocol":1,"session_id":"s"}`))
	var failure *runnerscripts.ScriptFailure
	if errors.As(err, &failure) {
		fmt.Println(failure.Code)
	}
	// Output: protocol
}

// Allow and Reject choose among the answers that the request offers.
func ExamplePermissionRequest_Allow() {
	req := runnerscripts.PermissionRequest{ID: "1", Options: []runnerscripts.PermissionOption{
		{OptionID: "yes", Name: "Yes", Kind: runnerscripts.AllowOnce},
		{OptionID: "no", Name: "No", Kind: runnerscripts.RejectOnce},
	}}
	fmt.Println(req.Allow().Kind)
	no := req.Reject("not on a Friday")
	fmt.Println(no.Kind, no.Message)
	// Output:
	// allow_once
	// reject_once not on a Friday
}

// A script reads its later input line by line. Each line is available as soon as it is complete.
func ExampleLineReader() {
	lines := runnerscripts.NewLineReader(strings.NewReader("one\r\n\nthree"), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s, unterminated: %t\n", lines.Lines(), line, lines.Unterminated())
	}
	// Output:
	// 1: one, unterminated: false
	// 3: three, unterminated: true
}

// DecodeControl refuses a line that is no control line. It accepts an unknown type: the script
// decides about it.
func ExampleDecodeControl() {
	c, err := runnerscripts.DecodeControl([]byte(`{"type":"prompt","id":"q1","text":"fix the tests"}`))
	fmt.Println(c.Type == runnerscripts.ControlPrompt, c.ID, c.Text, err)
	_, err = runnerscripts.DecodeControl([]byte(`fix the tests`))
	var failure *runnerscripts.ScriptFailure
	if errors.As(err, &failure) {
		fmt.Println(failure.Code)
	}
	// Output:
	// true q1 fix the tests <nil>
	// invalid_request
}
