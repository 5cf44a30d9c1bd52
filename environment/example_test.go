package environment_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/environment"
)

// The embedded agent "script" needs no key and no network.
func Example() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [
			{"write": {"path": "hello.txt", "content": "Hello!\n"}},
			{"text": "I wrote hello.txt."}
		]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "write hello.txt"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
	}
	fmt.Println()
	if err := env.Patch(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// I wrote hello.txt.
	// diff --git a/hello.txt b/hello.txt
	// new file mode 100644
	// index 0000000000000000000000000000000000000000..10ddd6d257e01349d514541981aeecea6b2e741d
	// --- /dev/null
	// +++ b/hello.txt
	// @@ -0,0 +1,1 @@
	// +Hello!
}

// A workspace starts with sources, and Changes count from there.
func ExampleEnvironment_Changes() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Workspace: []environment.Source{{Files: []environment.File{
			{Path: "main.go", Content: "package main\n"},
			{Path: "old.go", Content: "package main\n"},
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	// Any process in the sandbox may change files; here this program does.
	box := env.Primitive()
	if err := box.Move(ctx, "old.go", "new.go"); err != nil {
		log.Fatal(err)
	}
	changes, err := env.Changes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range changes {
		fmt.Println(c.Kind, c.Path)
	}
	// Output:
	// created new.go
	// deleted old.go
}

func ExampleParseConfig() {
	cfg, err := environment.ParseConfig([]byte(`
sandbox: {type: local, keep: true}
agent: {name: claude, permission_mode: acceptEdits}
workspace:
  - git: {url: "https://example.com/project.git", ref: v1.2.0}
  - folder: {path: ./fixtures, gitignore: true}
    into: testdata
`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Sandbox.Type, cfg.Sandbox.Keep, cfg.Agent.Name, len(cfg.Workspace))

	_, err = environment.ParseConfig([]byte("sandbox: local\nagnet: {name: claude}\n"))
	fmt.Println(err)
	// Output:
	// local true claude 2
	// invalid configuration: unknown key agnet; did you mean agent? there are: agent, budget, checkpoints, coordinator, credentials, delegation, deliver, ignore_changes, models, name, permissions, pool, profile, raw, record, replay, runner, sandbox, scripts, session_id, workspace
}

// A source can also be a tar archive, from a file or from any reader.
func ExampleSource() {
	var archive bytes.Buffer // filled by tar.NewWriter
	sources := []environment.Source{
		{Folder: &environment.Folder{Path: ".", Gitignore: true}},
		{Into: "vendor", Tar: &environment.Tar{Reader: &archive}},
		{Files: []environment.File{{Path: "run.sh", Content: "#!/bin/sh\n", Mode: 0o755}}},
	}
	fmt.Println(len(sources))
	// Output: 3
}
