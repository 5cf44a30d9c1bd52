package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

func TestDoctorFindsAFullDisk(t *testing.T) {
	dir := testneed.SmallDisk(t)
	f := checkDisk("disk", "remove something", func() (string, error) { return filepath.Join(dir, "not", "yet"), nil })
	if f.Status != statusMissing || f.Detail != "1 MiB free ("+dir+")" || f.Fix != "make room, remove something" {
		t.Errorf("%+v", f)
	}
}

// What an agent has done is lost if neither its session nor its patch can be stored.
func TestARunOnAFullStateDiskIsRefusedBeforeTheAgentWorks(t *testing.T) {
	alone(t)
	dir := testneed.SmallDisk(t)
	t.Setenv("XDG_STATE_HOME", dir)
	for range 2 { // an empty disk that is too small, and a full one
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"run", "hi"})
		if code != exitFailure || out.Len() > 0 || !strings.Contains(errOut.String(), "no space left") || !strings.Contains(errOut.String(), dir) {
			t.Errorf("exit status %d\n%s%s", code, &out, &errOut)
		}
		_ = os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 2<<20), 0o600) // as much as there is room for
	}
}

func TestAnInterruptedRunStillTellsWhatElseFailed(t *testing.T) {
	alone(t)
	dir := testneed.SmallDisk(t)
	if f, err := os.Create(filepath.Join(dir, "fill")); err != nil {
		t.Fatal(err)
	} else if _, err := f.Write(make([]byte, 2<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &hooked{hook: func(text string) bool {
		if strings.Contains(text, "sleep") {
			cancel()
		}
		return true
	}}
	var errOut bytes.Buffer
	code := Execute(ctx, strings.NewReader(""), out, &errOut, []string{
		"run", "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"write":{"path":"a","content":"x"}},{"run":["sleep","600"]}]}]}`), "--patch", filepath.Join(dir, "fix.patch"), "go",
	})
	if s := errOut.String(); code != exitInterrupted || !strings.Contains(s, "interrupted") || !strings.Contains(s, "no space left") {
		t.Errorf("exit status %d\n%s", code, s)
	}
	if err := besides(errors.Join(context.Canceled, io.ErrShortWrite), context.Canceled); !errors.Is(err, io.ErrShortWrite) || errors.Is(err, context.Canceled) {
		t.Errorf("what else failed: %v", err)
	}
	if err := besides(context.Canceled, context.Canceled); err != nil {
		t.Errorf("nothing else failed: %v", err)
	}
}

// A patch that does not fit is no patch: none stays, and the session has the changes.
func TestAPatchThatDoesNotFitIsRemoved(t *testing.T) {
	alone(t)
	patch := filepath.Join(testneed.SmallDisk(t), "fix.patch")
	var out, errOut bytes.Buffer
	code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{
		"run", "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"run":["sh","-c","head -c 3000000 /dev/urandom > f"]}]}]}`), "--patch", patch, "go",
	})
	_, again, advised := strings.Cut(errOut.String(), "'envctl diff ")
	if _, err := os.Lstat(patch); code != exitFailure || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(errOut.String(), "no space left") || !advised {
		t.Fatalf("exit status %d, %v\n%s", code, err, &errOut)
	}
	id, _, _ := strings.Cut(again, "'")
	out.Reset()
	if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"diff", id}); code != exitOK || !strings.HasPrefix(out.String(), "diff --git a/f b/f\n") {
		t.Errorf("exit status %d, %d bytes\n%s", code, out.Len(), &errOut)
	}
}
