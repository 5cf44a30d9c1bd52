package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// storeSession is a command of the scripts. It stores a session with the ID and the title of its
// arguments, and with a conversation. Then it prints a line and holds the lease of the session
// until EOF of its input.
func storeSession() {
	if err := storeAndHold(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func storeAndHold(ctx context.Context, id, title string) error {
	s, err := sessionstore.Open(ctx)
	if err != nil {
		return err
	}
	r := store.Record{
		ID: id, Agent: "script", Title: title, Status: "idle", CreatedAt: time.Now(), State: json.RawMessage(`{"secret":1}`),
		Sandbox: store.Sandbox{Type: "docker", ID: "box-" + id}, Metadata: map[string]string{"owner": "ada"},
		Usage: runnerscripts.Usage{InputTokens: 2, CacheReadTokens: 10, OutputTokens: 3},
	}
	if err := s.Create(ctx, r); err != nil {
		return err
	}
	events := []runnerscripts.Event{
		{Type: runnerscripts.TypeQueryStarted, Payload: json.RawMessage(`{"prompt":"say hello"}`)},
		{Type: runnerscripts.TypeUserMessage, Payload: json.RawMessage(`{"blockId":"u","content":{"type":"text","text":"say hello"}}`)},
		{Type: runnerscripts.TypeAgentMessage, Payload: json.RawMessage(`{"blockId":"b","content":{"type":"text","text":"hello from the agent"}}`)},
		{Type: runnerscripts.TypeQueryCompleted, Payload: json.RawMessage(`{"stop_reason":"end_turn"}`)},
	}
	for i := range events {
		events[i].Seq, events[i].SessionID, events[i].QueryID, events[i].Time = uint64(i+1), id, "q", time.Now()
		events[i].ConversationID = runnerscripts.MainConversation
	}
	if err := s.Append(ctx, id, events...); err != nil {
		return err
	}
	if _, err := store.PutBlob(ctx, s, id, strings.NewReader(strings.Repeat("x", 100_000))); err != nil {
		return err
	}
	unlock, err := s.Lock(ctx, id)
	if err != nil {
		return err
	}
	fmt.Println("stored")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return errors.Join(unlock(), s.Close())
}
