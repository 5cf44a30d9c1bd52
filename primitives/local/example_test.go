package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// The zero Config makes a new, empty sandbox that Terminate removes.
func ExampleNew() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	if err := box.WriteFile(ctx, "a.txt", strings.NewReader("hello\n"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	res, err := box.Run(ctx, primitives.Command{Args: []string{"cat", "a.txt"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
	if _, err := box.Terminate(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = os.Stat(box.Paths().Session)
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// hello
	// true
}

// A folder of this machine is used in place, and is still there afterwards.
func ExampleConfig_workspace() {
	ctx := context.Background()
	project, err := os.MkdirTemp("", "project-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(project)
	box, err := local.New(ctx, local.Config{Workspace: project, Env: []string{"CI=1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	cmd := primitives.Command{Args: []string{"sh", "-c", "echo CI is $CI >report.txt"}}
	if _, err := box.Run(ctx, cmd, primitives.RunOptions{}); err != nil {
		log.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(project, "report.txt"))
	fmt.Print(string(data), err)
	// Output:
	// CI is 1
	// <nil>
}

// A sandbox that is kept can be attached to by its ID, from another program too.
func ExampleAttach() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{Keep: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.WriteFile(ctx, "a.txt", strings.NewReader("still here"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := box.Close(); err != nil {
		log.Fatal(err)
	}
	again, err := local.Attach(ctx, local.Config{}, box.ID())
	if err != nil {
		log.Fatal(err)
	}
	defer again.Close()
	defer again.Terminate(ctx)
	data, err := primitives.ReadFile(ctx, again, "a.txt", 0)
	fmt.Println(string(data), err)
	// Output: still here <nil>
}

// Adopt makes a new sandbox of the folder of an ended one that was copied with its file system.
func ExampleAdopt() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	box, err := local.New(ctx, local.Config{Root: root, LeaveFiles: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.WriteFile(ctx, "a.txt", strings.NewReader("still here"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	_, err = box.Terminate(ctx)
	if err := errors.Join(err, box.Close()); err != nil {
		log.Fatal(err)
	}
	again, err := local.Adopt(ctx, local.Config{Root: root}, box.ID())
	if err != nil {
		log.Fatal(err)
	}
	defer again.Close()
	defer again.Terminate(ctx)
	data, err := primitives.ReadFile(ctx, again, "a.txt", 0)
	fmt.Println(string(data), err)
	// Output: still here <nil>
}

// GC removes the sandboxes of programs that have died. It spares the sandboxes of live programs.
func ExampleProvider_GC() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	cfg := local.Config{Root: root}
	box, err := local.New(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	removed, err := local.Provider{Root: cfg.Root}.GC(ctx, primitives.GCOptions{})
	for _, g := range removed {
		fmt.Println("removed", g.Kind, g.ID, g.Why)
	}
	fmt.Println(len(removed), err)
	// Output: 0 <nil>
}

func ExampleProvider_List() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	cfg := local.Config{Root: root}
	box, err := local.New(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	infos, err := local.Provider{Root: cfg.Root}.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range infos {
		fmt.Println(info.ID == box.ID(), info.Status, "owned:", info.Owned, "kept:", info.Kept)
	}
	// Output: true running owned: true kept: false
}

// A Provider has the same interface for sandboxes of any kind.
func ExampleProvider() {
	ctx := context.Background()
	var provider primitives.Provider = local.Provider{}
	_, err := provider.Create(ctx, primitives.Spec{Image: "node:22"})
	fmt.Println(errors.Is(err, errors.ErrUnsupported))

	box, err := provider.Create(ctx, primitives.Spec{Env: map[string]string{"LANG": "C"}})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"printenv", "LANG"}}, primitives.RunOptions{})
	fmt.Print(string(res.Stdout), err)
	// Output:
	// true
	// C
	// <nil>
}

// A Folder receives files of a sandbox, which is not trusted: no name and no link leads out of the
// folder.
func ExampleOpenFolder() {
	ctx := context.Background()
	results, err := os.MkdirTemp("", "results-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(results)
	folder, err := local.OpenFolder(results)
	if err != nil {
		log.Fatal(err)
	}
	defer folder.Close()
	if err := folder.WriteFile(ctx, "report.txt", strings.NewReader("passed"), 0o644, time.Time{}); err != nil {
		log.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(results, "report.txt"))
	fmt.Println(string(data), err)
	err = folder.WriteFile(ctx, "../escaped.txt", strings.NewReader("gotcha"), 0o644, time.Time{})
	fmt.Println(errors.Is(err, primitives.ErrPathEscape))
	// Output:
	// passed <nil>
	// true
}

// A program with durable commands supervises them itself if Config.Runner names it. Usually
// Config.Runner is the runner of package bundle, which does the same.
func ExampleSupervise() {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		os.Exit(local.Supervise(context.Background(), os.Args[2]))
	}
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	box, err := local.New(context.Background(), local.Config{Runner: self})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
}
