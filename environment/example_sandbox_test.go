package environment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Attach opens a kept sandbox again by its ID or its name, from another program too.
func ExampleAttach() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "local", Spec: primitives.Spec{Keep: true}}
	env, err := environment.Create(ctx, environment.Config{Name: "example-attach", Sandbox: box})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := env.Exec(ctx, "sh", "-c", "echo still here >note.txt"); err != nil {
		log.Fatal(err)
	}
	if err := env.Close(); err != nil {
		log.Fatal(err)
	}
	again, err := environment.Attach(ctx, environment.Config{Sandbox: box}, "example-attach")
	if err != nil {
		log.Fatal(err)
	}
	defer environment.Remove(ctx, box, again.ID())
	defer again.Close()
	out, err := again.Exec(ctx, "cat", "note.txt")
	fmt.Print(out, err)
	// Output:
	// still here
	// <nil>
}

// List returns the sandboxes of a type, whichever program created them, and Remove ends one.
func ExampleList() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	box := environment.Sandbox{Type: "local", Provider: &local.Provider{Root: root}}
	env, err := environment.Create(ctx, environment.Config{Name: "example-list", Sandbox: box})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	list, err := environment.List(ctx, box)
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range list {
		fmt.Println(info.Name, info.Type, info.Status, info.InUse)
	}
	// Output: example-list local running true
}

func ExampleRemove() {
	ctx := context.Background()
	box := environment.Sandbox{Type: "local", Spec: primitives.Spec{Keep: true}}
	env, err := environment.Create(ctx, environment.Config{Sandbox: box})
	if err != nil {
		log.Fatal(err)
	}
	if err := env.Close(); err != nil { // the sandbox is kept
		log.Fatal(err)
	}
	fmt.Println(environment.Remove(ctx, box, env.ID()))
	_, err = environment.Attach(ctx, environment.Config{Sandbox: box}, env.ID())
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// <nil>
	// true
}

// GC removes orphaned sandboxes. A dry run only lists them.
func ExampleGC() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	box := environment.Sandbox{Type: "local", Provider: &local.Provider{Root: root}}
	garbage, err := environment.GC(ctx, box, environment.GCOptions{GCOptions: primitives.GCOptions{DryRun: true}})
	for _, g := range garbage {
		fmt.Println("would remove", g.Type, g.ID, g.Why)
	}
	fmt.Println(len(garbage), err)
	// Output: 0 <nil>
}

// A configuration file holds a Config. Its relative paths start at its folder.
func ExampleLoadConfig() {
	dir, err := os.MkdirTemp("", "config-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "env.yaml")
	text := "sandbox: docker\nagent: claude\nworkspace:\n  - folder: src\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}
	cfg, err := environment.LoadConfig(name)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Sandbox.Type, cfg.Agent.Name, cfg.Workspace[0].Folder.Path == filepath.Join(dir, "src"))
	// Output: docker claude true
}

// New prepares the caller's own sandbox, which Close does not end.
func ExampleNew() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	env, err := environment.New(ctx, box, environment.Config{
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	res, err := env.Run(ctx, "say hello")
	fmt.Println(res.Text, err)
	// Output: Hello! <nil>
}

// A Provider has the settings of one kind of sandbox. In a file they are the block with the name of
// the type. Without such settings a program imports the package for the type alone:
//
//	import _ "github.com/agentenv-dev/agentenv/primitives/docker"
func ExampleSandbox() {
	box := environment.Sandbox{
		Type:     "docker",
		Spec:     primitives.Spec{Image: "golang:1.26", Network: "none"},
		Provider: &docker.Provider{Pids: 512},
	}
	file, err := json.Marshal(box)
	fmt.Println(string(file), err)
	// Output: {"docker":{"pids":512},"image":"golang:1.26","network":"none","type":"docker"} <nil>
}

// A provider of another module works like those of this one, under a name of its own.
func ExampleSandbox_provider() {
	ctx := context.Background()
	var mine primitives.Provider = local.Provider{} // of this module, to keep the example short
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "mine", Provider: mine},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, err := env.Exec(ctx, "echo", "in a sandbox of mine")
	fmt.Print(out, err)
	// Output:
	// in a sandbox of mine
	// <nil>
}

// Apply makes the changes in the folder that was copied: all of them, or none if the folder has
// changed since.
func ExampleEnvironment_Apply() {
	ctx := context.Background()
	project, err := os.MkdirTemp("", "project-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(project)
	folder := environment.Folder{Path: project}
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Workspace: []environment.Source{{Folder: &folder}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if _, err := env.Exec(ctx, "sh", "-c", "echo done >result.txt"); err != nil {
		log.Fatal(err)
	}
	changes, err := env.Apply(ctx, folder)
	if err != nil {
		log.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(project, "result.txt"))
	fmt.Println(changes[0].Kind, changes[0].Path, strings.TrimSpace(string(data)), err)
	// Output: created result.txt done <nil>
}

// Move takes workspace and conversation to another sandbox, possibly of another type.
func ExampleEnvironment_Move() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "I know: {{history}}"}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if _, err := env.Run(ctx, "read the code"); err != nil {
		log.Fatal(err)
	}
	moved, err := env.Move(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "local"}})
	if err != nil {
		log.Fatal(err)
	}
	defer moved.Close()
	res, err := moved.Run(ctx, "go on")
	fmt.Println(res.Text, err)
	// Output: I know: read the code <nil>
}

func ExampleEnvironment_WorkspaceFiles() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox:   environment.Sandbox{Type: "local"},
		Workspace: []environment.Source{{Files: []environment.File{{Path: "src/a.go", Content: "package a\n"}}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	files, err := env.WorkspaceFiles(ctx, environment.FilesOptions{MaxContent: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		fmt.Printf("%s %q\n", f.Path, f.Content)
	}
	// Output: src/a.go "package a\n"
}

// ReadConversation reads the conversation from the agent's own history.
func ExampleEnvironment_ReadConversation() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent:   environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "Hello!"}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if _, err := env.Run(ctx, "say hello"); err != nil {
		log.Fatal(err)
	}
	for ev, err := range env.ReadConversation(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if chunk, ok := ev.Value().(*runnerscripts.ContentChunk); ok {
			fmt.Println(ev.Type, chunk.Content.Text)
		}
	}
	// Output:
	// user_message_chunk say hello
	// agent_message_chunk Hello!
}

// A snapshot of a container is an image, from which other containers can be created.
func ExampleEnvironment_Snapshot() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{Type: "docker"}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if _, err := env.Exec(ctx, "npm", "install", "--global", "typescript"); err != nil {
		log.Fatal(err)
	}
	image, err := env.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	copied, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: image}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer copied.Close()
}

// The list can change while the sandbox runs: here nothing can be reached once the dependencies
// are installed.
func ExampleEnvironment_SetAllowHosts() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{
		Type: "docker", Spec: primitives.Spec{Network: "none"}, AllowHosts: []string{"registry.npmjs.org"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	if _, err := env.Exec(ctx, "npm", "install", "left-pad"); err != nil {
		log.Fatal(err)
	}
	if err := env.SetAllowHosts(nil); err != nil {
		log.Fatal(err)
	}
}

// A caller passes the proxy to commands that it starts through Primitive.
func ExampleEnvironment_GatewayEnv() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{Sandbox: environment.Sandbox{
		Type: "docker", Spec: primitives.Spec{Network: "none"}, AllowHosts: []string{"*.example.com"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	fetch := primitives.Command{Args: []string{"git", "clone", "https://git.example.com/project.git"}, Env: env.GatewayEnv()}
	if _, err := primitives.Run(ctx, env.Primitive(), fetch, primitives.RunOptions{}); err != nil {
		log.Fatal(err)
	}
}
