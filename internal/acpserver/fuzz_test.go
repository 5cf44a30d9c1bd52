package acpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// FuzzServe checks that Serve ends for any input, and that each answer is one JSON object on a
// line.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"a","method":"session/prompt","params":{"sessionId":"x","prompt":[{"type":"text","text":"y"}]}}`))
	f.Add([]byte(`{"id":null,"result":{}}` + "\n" + `{"method":"$/cancel_request","params":{"id":1}}` + "\n[]"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		host, err := session.NewHost(session.HostConfig{Store: store.NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Name: "fuzz", Host: host, EndHost: true, Configure: func(context.Context, Request) (session.Config, error) {
			return session.Config{}, errors.New("none")
		}}
		var answers bytes.Buffer
		if err := Serve(t.Context(), cfg, Lines(bytes.NewReader(sent), &answers)); err != nil {
			return // a line that is too long, say
		}
		for line := range bytes.Lines(answers.Bytes()) {
			if !json.Valid(line) {
				t.Errorf("an answer %q", line)
			}
		}
	})
}
