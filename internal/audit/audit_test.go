package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("AUDIT_WRITER") != "" {
		for n := range 500 {
			if err := add(Entry{Event: Permission, Query: fmt.Sprint(os.Getenv("AUDIT_WRITER"), "-", n), Call: strings.Repeat("x", 100)}, 32<<10); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		return
	}
	os.Exit(m.Run())
}

// state makes a state folder, and returns the folder of the log.
func state(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	return filepath.Join(dir, "agentenv", folder)
}

// entries reads all files, the oldest first.
func entries(t *testing.T, dir string) (all []Entry) {
	t.Helper()
	for n := maxFiles; n >= 0; n-- {
		f, err := os.Open(filepath.Join(dir, file(n)))
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var e Entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("%s: %v: %s", f.Name(), err, lines.Text())
			}
			all = append(all, e)
		}
	}
	return all
}

func TestALineForEachEntry(t *testing.T) {
	dir := state(t)
	l := &Log{Hide: strings.ToUpper, Session: "s", Sandbox: "b", Failed: func(err error) { t.Error(err) }}
	l.Add(Entry{Event: Permission, Call: strings.Repeat("É", maxText)})
	l.Add(Entry{Event: Refused, Host: "example"})
	(*Log)(nil).Add(Entry{})
	all := entries(t, dir)
	if len(all) != 2 || all[0].Session != "s" || all[0].Sandbox != "b" || all[0].Time.IsZero() || all[1].Host != "EXAMPLE" {
		t.Errorf("the log has %+v", all)
	}
	if n := len(all[0].Call); n > maxText || n < maxText-8 {
		t.Errorf("a long text has %d bytes", n)
	}
	name, err := Path()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode: %v, %v", info, err)
	}
}

// Programs that append and rotate at once mix no lines, and keep as many full files as there may be.
func TestProgramsAppendAtOnce(t *testing.T) {
	dir := state(t)
	var running []*exec.Cmd
	for _, name := range []string{"a", "b", "c"} {
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env, c.Stderr = append(os.Environ(), "AUDIT_WRITER="+name), os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
	}
	for _, c := range running {
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, e := range entries(t, dir) {
		if seen[e.Query] {
			t.Errorf("%s is there twice", e.Query)
		}
		seen[e.Query] = true
	}
	for n := range maxFiles + 1 {
		if info, err := os.Stat(filepath.Join(dir, file(n))); err == nil {
			if n > 0 && info.Size() < 32<<10 {
				t.Errorf("%s was rotated with %d bytes", info.Name(), info.Size())
			}
			if n == maxFiles {
				t.Errorf("%s is one too many", info.Name())
			}
		}
	}
	if least := (maxFiles - 1) * (32 << 10) / 250; len(seen) < least {
		t.Errorf("%d lines are there, want at least %d", len(seen), least)
	}
	// They may all be there, if a program stood still while it rotated. Afterwards they go.
	for range maxFiles * (32 << 10) / 100 {
		if err := add(Entry{Event: Permission, Call: strings.Repeat("x", 100)}, 32<<10); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries(t, dir) {
		if e.Query != "" {
			t.Errorf("%s is there still", e.Query)
		}
	}
}

func TestAFailureIsSaidOnce(t *testing.T) {
	dir := state(t)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in place of the folder
		t.Fatal(err)
	}
	said := 0
	l := &Log{Hide: strings.ToUpper, Failed: func(error) { said++ }}
	l.Add(Entry{})
	l.Add(Entry{})
	if said != 1 {
		t.Errorf("it was said %d times", said)
	}
}

func BenchmarkAdd(b *testing.B) {
	b.Setenv("XDG_STATE_HOME", b.TempDir())
	l := &Log{Hide: strings.ToUpper, Failed: func(err error) { b.Error(err) }}
	for b.Loop() {
		l.Add(Entry{Event: Credential, Credential: "anthropic", Request: "POST /v1/messages"})
	}
}
