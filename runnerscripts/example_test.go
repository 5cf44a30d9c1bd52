package runnerscripts_test

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A Decoder reads a script's output event by event. Lines that are no events become diagnostics;
// the last line is the result.
func ExampleDecoder() {
	stdout := strings.NewReader(`{"type":"query_started","payload":{"prompt":"hi"},"time":"2026-11-21T09:12:04Z"}
a library printed this
{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"Hello!"}},"time":"2026-11-21T09:12:05Z"}
{"type":"result","ok":true}
`)
	dec := runnerscripts.NewDecoder(stdout, 0)
	for {
		ev, err := dec.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fmt.Println(err)
			break
		}
		switch ev.Type {
		case runnerscripts.TypeLog:
			l, _ := runnerscripts.Payload[runnerscripts.Log](ev)
			fmt.Println(l.Level+":", l.Message)
		case runnerscripts.TypeResult:
			res, _ := runnerscripts.Payload[runnerscripts.Result](ev)
			fmt.Println("ok:", res.OK)
		case runnerscripts.TypeAgentMessage:
			fmt.Println("agent:", ev.Text())
		default:
			fmt.Println(ev.Type)
		}
	}
	fmt.Println("malformed:", dec.Counts().Malformed)
	// Output:
	// query_started
	// warn: a line is not an event and was left out
	// agent: Hello!
	// ok: true
	// malformed: 1
}
