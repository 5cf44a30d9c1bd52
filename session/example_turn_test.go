package session_test

import (
	"context"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Prompts are queued, and run one after another in the same conversation.
func ExampleAgentSession_Prompt() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "{{prompt}}: done"}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	first, err := s.Prompt(ctx, "build")
	if err != nil {
		log.Fatal(err)
	}
	second, err := s.Prompt(ctx, "test")
	if err != nil {
		log.Fatal(err)
	}
	for _, turn := range []*session.Turn{first, second} {
		conversation, err := session.Reduce(turn.Events(ctx))
		if err != nil {
			log.Fatal(err)
		}
		last := conversation.Blocks[len(conversation.Blocks)-1]
		fmt.Println(last.Kind, last.Text)
	}
	// Output:
	// agent build: done
	// agent test: done
}

// The events of a session are numbered and stored. A reader can continue after the last event
// that it has seen.
func ExampleAgentSession_Events() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Prompt(ctx, "say hello"); err != nil {
		log.Fatal(err)
	}
	for ev, err := range s.Events(ctx, 1) { // later: the Seq after that of the last event seen
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
		if ev.Type == runnerscripts.TypeQueryCompleted {
			break // the sequence continues until the session is closed
		}
	}
	// Output: Hello!
}

// State lists the pending requests, and Respond answers one by its ID.
func ExampleAgentSession_Respond() {
	ctx := context.Background()
	cfg := scripted(`{"turns": [{"steps": [{"ask": {"run": ["true"]}}, {"text": "Deployed."}]}]}`)
	cfg.OnPermission = environment.AnswerLater
	s, err := session.Open(ctx, session.Config{Environment: cfg})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	turn, err := s.Prompt(ctx, "deploy it")
	if err != nil {
		log.Fatal(err)
	}
	for ev, err := range turn.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if req, ok := ev.Value().(*runnerscripts.PermissionRequest); ok {
			if err := s.Respond(ctx, req.ID, req.Allow()); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Print(ev.Text())
	}
	// Output: Deployed.
}

// An interrupted turn completes. The session takes further prompts.
func ExampleTurn_Interrupt() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"delay_ms": 3600000}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	turn, err := s.Prompt(ctx, "think for an hour")
	if err != nil {
		log.Fatal(err)
	}
	for ev, err := range turn.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeQueryStarted {
			if err := turn.Interrupt(ctx); err != nil {
				log.Fatal(err)
			}
		}
	}
	done, err := turn.Wait(ctx)
	fmt.Println(done.StopReason, err)
	// Output: cancelled <nil>
}

// The copies start with the current conversation and files, and continue independently.
func ExampleAgentSession_Fork() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "I know: {{history}}"}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	turn, err := s.Prompt(ctx, "read the code")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := turn.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	copies, err := s.Fork(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer copies[0].Close()
	if turn, err = copies[0].Prompt(ctx, "try an idea"); err != nil {
		log.Fatal(err)
	}
	for ev := range turn.Events(ctx) {
		fmt.Print(ev.Text())
	}
	// Output: I know: read the code
}

// The sandbox may end between two prompts. The next one starts with the same workspace and
// memory.
func ExampleAgentSession_TerminateEnvironment() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Environment: scripted(`{"turns": [
		{"steps": [{"write": {"path": "note.txt", "content": "remember this"}}]},
		{"steps": [{"text": "Where was I?"}]}]}`)})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for _, prompt := range []string{"take a note", "go on"} {
		if err := s.TerminateEnvironment(ctx); err != nil {
			log.Fatal(err)
		}
		turn, err := s.Prompt(ctx, prompt)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := turn.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	files, err := s.Files(ctx, environment.FilesOptions{MaxContent: 100})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", files[0].Path, files[0].Content)
	// Output: note.txt: remember this
}

// A Conversation applies events as they arrive, and can be shown after each.
func ExampleConversation_Apply() {
	c := session.NewConversation()
	for _, line := range []string{
		`{"seq":1,"type":"user_message_chunk","payload":{"blockId":"u","content":{"type":"text","text":"hi"}}}`,
		`{"seq":2,"type":"agent_message_chunk","payload":{"blockId":"a","content":{"type":"text","text":"Hel"}}}`,
		`{"seq":3,"type":"agent_message_chunk","payload":{"blockId":"a","content":{"type":"text","text":"lo!"}}}`,
	} {
		ev, err := runnerscripts.DecodeEvent([]byte(line))
		if err != nil {
			log.Fatal(err)
		}
		c.Apply(ev)
	}
	for _, b := range c.Blocks {
		fmt.Println(b.Kind, b.Text)
	}
	// Output:
	// user hi
	// agent Hello!
}

// A store lists the sessions of a program, latest first.
func ExampleConfig_store() {
	ctx := context.Background()
	sessions := store.NewMemory()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`),
		Store:       sessions,
		Metadata:    map[string]string{"title": "A greeting"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for rec, err := range sessions.List(ctx, store.Filter{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rec.ID == s.ID(), rec.Agent, rec.Metadata["title"])
	}
	// Output: true script A greeting
}
