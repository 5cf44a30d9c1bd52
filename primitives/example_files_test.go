package primitives_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// A revision keeps a program from overwriting the changes of another.
func ExampleFiles() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := box.WriteFile(ctx, "notes/todo.md", strings.NewReader("one"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	info, err := box.Stat(ctx, "notes/todo.md")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Path, info.Size, info.Mode)
	if err := box.WriteFile(ctx, "notes/todo.md", strings.NewReader("two"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	err = box.WriteFile(ctx, "notes/todo.md", strings.NewReader("three"), primitives.WriteOptions{IfRevision: info.Revision})
	fmt.Println(errors.Is(err, primitives.ErrConflict))
	// Output:
	// notes/todo.md 3 -rw-r--r--
	// true
}

// WriteFiles writes many files in one round trip. List finds them by a pattern.
func ExampleWriteFiles() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	errs, err := primitives.WriteFiles(ctx, box, []primitives.File{
		{Path: "go.mod", Content: []byte("module example\n")},
		{Path: "cmd/main.go", Content: []byte("package main\n")},
		{Path: "run.sh", Content: []byte("#!/bin/sh\n"), Mode: 0o755},
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		log.Fatal(err)
	}
	files, err := box.List(ctx, ".", primitives.ListOptions{Pattern: "**/*.{go,sh}"})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		fmt.Println(f.Mode, f.Path)
	}
	// Output:
	// -rw-r--r-- cmd/main.go
	// -rwxr-xr-x run.sh
}

func ExampleReadFile() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := box.WriteFile(ctx, "log.txt", strings.NewReader("a long story"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	data, err := primitives.ReadFile(ctx, box, "log.txt", 6)
	fmt.Println(string(data), errors.Is(err, primitives.ErrLimit))
	// Output: a long true
}

// Pack returns a directory as a tar stream. Unpack writes it into any sandbox.
func ExamplePack() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := box.WriteFile(ctx, "src/a.go", strings.NewReader("package a\n"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	archive, err := primitives.Pack(ctx, box, "src", primitives.PackOptions{Ignore: []string{"node_modules"}})
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()
	if err := primitives.Unpack(ctx, box, "copy", archive); err != nil {
		log.Fatal(err)
	}
	data, err := primitives.ReadFile(ctx, box, "copy/a.go", 0)
	fmt.Printf("%q %v\n", data, err)
	// Output: "package a\n" <nil>
}

// An archive cannot write outside the directory that it is unpacked into.
func ExampleUnpack() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "../../stolen", Mode: 0o644}); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	err = primitives.Unpack(ctx, box, "vendor", &archive)
	fmt.Println(errors.Is(err, primitives.ErrPathEscape))
	// Output: true
}

// The watch is live when Watch returns: no change after that is missed.
func ExampleEnvironmentPrimitive_Watch() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	events, err := box.Watch(ctx, ".", primitives.WatchOptions{Include: []string{"*.go"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.WriteFile(ctx, "main.go", strings.NewReader("package main\n"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	for ev, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ev.Op, ev.Path)
		break // leaving the loop ends the watch
	}
	// Output: create main.go
}
