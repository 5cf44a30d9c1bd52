package environment_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The watch is live when WatchWorkspace returns: no change after that is missed.
func ExampleEnvironment_WatchWorkspace() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "local"}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	events, err := env.WatchWorkspace(ctx, environment.FilesOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := env.Primitive().WriteFile(ctx, "main.go", strings.NewReader("package main\n"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	for ev, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		if c, ok := ev.Value().(*runnerscripts.FileChange); ok {
			fmt.Println(ev.Type, c.Path, c.Size)
		}
		break // leaving the loop ends the watch
	}
	// Output: file_created main.go 13
}

// Each event has the whole new transcript, in the agent's own format.
func ExampleEnvironment_WatchTranscript() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	events, err := env.WatchTranscript(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := env.Run(ctx, "say hello"); err != nil {
		log.Fatal(err)
	}
	for ev, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		if c, ok := ev.Value().(*runnerscripts.TranscriptChanged); ok && strings.Contains(c.Transcript.Main, "Hello!") {
			fmt.Println(ev.Type)
			break
		}
	}
	// Output: transcript_changed
}

// The last query in a kept sandbox can be read again, from another program too.
func ExampleEnvironment_FollowQuery() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "local", Spec: primitives.Spec{Keep: true}}
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: box,
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "All tests pass."}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer environment.Remove(ctx, box, env.ID())
	defer env.Close()
	if _, err := env.Run(ctx, "test it"); err != nil {
		log.Fatal(err)
	}
	again, err := environment.Attach(ctx, environment.Config{Sandbox: box}, env.ID())
	if err != nil {
		log.Fatal(err)
	}
	defer again.Close()
	for ev, err := range again.FollowQuery(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
	}
	// Output: All tests pass.
}

func ExampleEnvironment_Logs() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "local", Spec: primitives.Spec{Keep: true}}
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: box,
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "All tests pass."}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer environment.Remove(ctx, box, env.ID())
	defer env.Close()
	if _, err := env.Run(ctx, "test it"); err != nil {
		log.Fatal(err)
	}
	for entry, err := range env.Logs(ctx, false) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Source, strings.Contains(entry.Message, "(end_turn)"))
	}
	// Output:
	// runner false
	// runner true
}

// A type without history returns nothing.
func ExampleHistory() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "local"}
	env, err := environment.Create(ctx, environment.Config{Sandbox: box})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	entries, err := environment.History(ctx, box, env.ID())
	for _, entry := range entries {
		fmt.Println(entry.Time, entry.Message, entry.OutOfMemory)
	}
	fmt.Println(len(entries), err)
	// Output: 0 <nil>
}

// A paused container keeps its memory and uses no processor time.
func ExampleEnvironment_Pause() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "docker"}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if err := env.Pause(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = env.Exec(ctx, "true")
	fmt.Println(errors.Is(err, primitives.ErrUnavailable))
	if err := env.Resume(ctx); err != nil {
		log.Fatal(err)
	}
}

// BuildImage builds the image with an agent once, before it is needed. Images then lists it.
func ExampleBuildImage() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "docker"}
	image, err := environment.BuildImage(ctx, environment.Config{
		Sandbox:  box,
		Agent:    environment.Agent{Name: "claude"},
		Progress: func(message string) { fmt.Println(message) },
	})
	if err != nil && !errors.Is(err, fs.ErrExist) { // fs.ErrExist: the image needs nothing
		log.Fatal(err)
	}
	fmt.Println(image.Ref)
	images, err := environment.Images(ctx, box)
	if err != nil {
		log.Fatal(err)
	}
	for _, i := range images {
		fmt.Println(i.Ref, i.Agent, i.Version, i.Base, i.InUse)
	}
}

// Agents returns the agents that can be chosen, with what each needs in a sandbox.
func ExampleAgents() {
	agents, err := environment.Agents(context.Background(), environment.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range agents {
		if a.Agent == "claude" || a.Agent == "script" {
			fmt.Printf("%s needs %q\n", a.Agent, a.Program)
		}
	}
	// Output:
	// claude needs "claude"
	// script needs ""
}

// A folder with the layout of a Claude Code project is a profile.
func ExampleLoadProfile() {
	dir, err := os.MkdirTemp("", "profile-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"CLAUDE.md": "Answer briefly.\n", "profile.yaml": "name: reviewer\nmodel: opus\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	profile, err := environment.LoadProfile(dir)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %s %q\n", profile.Name, profile.Model, profile.Rules[0].Content)
	// Output: reviewer opus "Answer briefly.\n"
}
