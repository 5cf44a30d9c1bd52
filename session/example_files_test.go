package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// converse sends a prompt, prints what the agent says and waits for the end.
func converse(ctx context.Context, s *session.AgentSession, prompt string) {
	turn, err := s.Prompt(ctx, prompt)
	if err != nil {
		log.Fatal(err)
	}
	for ev, err := range turn.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
	}
	fmt.Println()
}

// The files of the sandbox can be read and written between two prompts.
func ExampleAgentSession_WriteFile() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "Ready."}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	err = s.WriteFile(ctx, "notes.txt", strings.NewReader("read me"), primitives.WriteOptions{})
	fmt.Println(errors.Is(err, session.ErrNoEnvironment)) // the first prompt creates the sandbox
	converse(ctx, s, "get ready")
	if err := s.WriteFile(ctx, "notes.txt", strings.NewReader("read me"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	f, err := s.OpenFile(ctx, "notes.txt")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	fmt.Println(string(data), err)
	// Output:
	// true
	// Ready.
	// read me <nil>
}

// OpenFile reads a file that the agent has written.
func ExampleAgentSession_OpenFile() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"write": {"path": "report.txt", "content": "all tests pass"}}, {"text": "Done."}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	converse(ctx, s, "write a report")
	f, err := s.OpenFile(ctx, "report.txt")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	fmt.Println(string(data), err)
	// Output:
	// Done.
	// all tests pass <nil>
}

// Options apply from the next prompt on, also in later sandboxes.
func ExampleAgentSession_SetOptions() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "I am {{model}}."}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for _, model := range []string{"small", "large"} {
		if err := s.SetOptions(ctx, session.Options{Model: model}); err != nil {
			log.Fatal(err)
		}
		converse(ctx, s, "who are you?")
	}
	// Output:
	// I am small.
	// I am large.
}

// The transcript is in the agent's own format. It is available without a sandbox, too.
func ExampleAgentSession_Transcript() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	converse(ctx, s, "say hello")
	if err := s.TerminateEnvironment(ctx); err != nil {
		log.Fatal(err)
	}
	transcript, err := s.Transcript(ctx)
	fmt.Println(strings.Contains(transcript.Main, "Hello!"), err)
	// Output:
	// Hello!
	// true <nil>
}

// Destroy removes a session from its store. Close does not.
func ExampleAgentSession_Destroy() {
	ctx := context.Background()
	sessions := store.NewMemory()
	cfg := session.Config{Environment: scripted(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`), Store: sessions}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	converse(ctx, s, "say hello")
	if err := s.Destroy(ctx); err != nil {
		log.Fatal(err)
	}
	cfg.ID = s.ID()
	_, err = session.Open(ctx, cfg)
	fmt.Println(errors.Is(err, store.ErrNotFound))
	// Output:
	// Hello!
	// true
}
