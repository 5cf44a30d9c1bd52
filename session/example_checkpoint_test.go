package session_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/session"
)

// Each query ends with a checkpoint. Rewind returns the files and the conversation to one.
func ExampleAgentSession_Rewind() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Environment: scripted(`{"turns": [
		{"steps": [{"write": {"path": "plan.txt", "content": "good\n"}}]},
		{"steps": [{"write": {"path": "plan.txt", "content": "bad\n"}}]},
		{"steps": [{"run": ["cat", "plan.txt"]}]}
	]}`)})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	converse(ctx, s, "Make a plan")
	converse(ctx, s, "Make it better")
	state, err := s.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range state.Checkpoints {
		fmt.Printf("%d %s %q\n", c.Number, c.Reason, c.Prompt)
	}
	if err := s.Patch(ctx, os.Stdout, 2, 3); err != nil {
		log.Fatal(err)
	}
	if err := s.Rewind(ctx, 2); err != nil {
		log.Fatal(err)
	}
	changes, err := s.Changes(ctx, 2, 0) // zero means the current checkpoint
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(changes), "changes")
	// Output:
	// 1 start ""
	// 2 query "Make a plan"
	// 3 query "Make it better"
	// diff --git a/plan.txt b/plan.txt
	// index 12799ccbe7ce445b11b7bd4833bcc2c2ce1b48b7..67be85f1274474029aad8a75b823592324305aa4 100644
	// --- a/plan.txt
	// +++ b/plan.txt
	// @@ -1,1 +1,1 @@
	// -good
	// +bad
	// 0 changes
}

// Several sessions continue from one checkpoint, independently of each other.
func ExampleAgentSession_ForkFrom() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{
		Environment: scripted(`{"turns": [{"steps": [{"text": "Turn {{turn}}: {{prompt}}."}]}]}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	converse(ctx, s, "Read the code")
	now, err := s.Sync(ctx)
	if err != nil {
		log.Fatal(err)
	}
	tries, err := s.ForkFrom(ctx, now.Number, 2)
	if err != nil {
		log.Fatal(err)
	}
	for i, try := range tries {
		defer try.Close()
		converse(ctx, try, fmt.Sprintf("Try %d", i+1))
	}
	// Output:
	// Turn 1: Read the code.
	// Turn 2: Try 1.
	// Turn 2: Try 2.
}
