package environment

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// patchOf creates an environment, changes its workspace from one tree to another, and returns
// its patch and its changes.
func patchOf(t *testing.T, before, after tree) (string, []Change) {
	t.Helper()
	cfg := Config{Sandbox: sandbox(t)}
	cfg.Sandbox.Workspace = t.TempDir()
	before.write(t, cfg.Sandbox.Workspace)
	env := create(t, cfg)
	dir := cfg.Sandbox.Workspace
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	after.write(t, dir)
	var patch bytes.Buffer
	if err := env.Patch(t.Context(), &patch); err != nil {
		t.Fatal(err)
	}
	changes, err := env.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return patch.String(), changes
}

func gitApply(t *testing.T, dir, patch string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "apply", "--whitespace=nowarn"}, args...)...)
	cmd.Stdin = strings.NewReader(patch)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%.2000q", err, out, patch)
	}
}

// numbered returns n numbered lines, some of them changed.
func numbered(n int, change map[int]string) string {
	var b strings.Builder
	for i := range n {
		if s, ok := change[i]; ok {
			b.WriteString(s)
			continue
		}
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func randomBytes(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// maxText is the size up to which a file is compared line by line.
const maxText = 8 << 20

type treePair struct{ before, after tree }

func textPatches() map[string]treePair {
	return map[string]treePair{
		"nothing":                  {tree{"a": "1\n"}, tree{"a": "1\n"}},
		"a line":                   {tree{"a": numbered(20, nil)}, tree{"a": numbered(20, map[int]string{9: "new\n"})}},
		"the first and last line":  {tree{"a": numbered(20, nil)}, tree{"a": numbered(20, map[int]string{0: "new\n", 19: ""})}},
		"several hunks":            {tree{"a": numbered(90, nil)}, tree{"a": numbered(90, map[int]string{3: "", 40: "x\ny\n", 88: "z\n"})}},
		"lines that repeat":        {tree{"a": strings.Repeat("}\n\n", 40)}, tree{"a": strings.Repeat("}\n\n", 17) + "new\n" + strings.Repeat("}\n\n", 22)}},
		"created and deleted":      {tree{"gone": "1\n2\n", "dir/gone": "1\n"}, tree{"new": "1\n2\n", "other/dir/new": "1\n"}},
		"CRLF":                     {tree{"a": "1\r\n2\r\n"}, tree{"a": "1\r\n3\r\n"}},
		"line end at the end lost": {tree{"a": "1\n2\n"}, tree{"a": "1\n2"}},
		"line end at the end won":  {tree{"a": "1\n2"}, tree{"a": "1\n2\n"}},
		"no line end on either":    {tree{"a": "1\n2"}, tree{"a": "1\n3"}},
		"new without a line end":   {tree{}, tree{"a": "1"}},
		"empty files":              {tree{"gone": "", "filled": "", "emptied": "1\n"}, tree{"new": "", "filled": "1\n", "emptied": ""}},
		"text that is not UTF-8":   {tree{"a": "caf\xe9\n"}, tree{"a": "caf\xe9!\n"}},
		"text too large for lines": {tree{"a": strings.Repeat("0123456789\n", maxText/11+1)}, tree{"a": strings.Repeat("0123456789\n", maxText/11+2)}},
		"text that looks like a patch": {
			tree{"a": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n"},
			tree{"a": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n"},
		},
	}
}

func otherPatches() map[string]treePair {
	return map[string]treePair{
		"new executable":           {tree{}, tree{"run": "x:#!/bin/sh\n"}},
		"executable now":           {tree{"run": "#!/bin/sh\n", "old": "x:1\n"}, tree{"run": "x:#!/bin/sh\n", "old": "1\n"}},
		"executable and changed":   {tree{"run": "#!/bin/sh\n"}, tree{"run": "x:#!/bin/bash\n"}},
		"deleted executable":       {tree{"run": "x:1\n"}, tree{}},
		"links":                    {tree{"gone": "-> a", "moved": "-> a", "a": "1\n"}, tree{"new": "-> dir/x y", "moved": "-> b", "a": "1\n"}},
		"a file became a link":     {tree{"a": "1\n", "b": "2\n"}, tree{"a": "-> b", "b": "2\n"}},
		"a link became a file":     {tree{"a": "-> b", "b": "2\n"}, tree{"a": "x:1\n", "b": "2\n"}},
		"a file became a folder":   {tree{"a": "1\n"}, tree{"a/b": "1\n", "a/c/d": "2\n"}},
		"a folder became a file":   {tree{"a/b": "1\n", "a/c/d": "2\n"}, tree{"a": "1\n"}},
		"a folder became a link":   {tree{"a/b": "1\n", "c": "1\n"}, tree{"a": "-> c", "c": "1\n"}},
		"binary created":           {tree{}, tree{"bin": "\x00\x01\x02", "big": randomBytes(1, 300_000)}},
		"binary changed":           {tree{"bin": randomBytes(2, 5000) + "\x00"}, tree{"bin": "\x00" + randomBytes(3, 4999)}},
		"binary deleted":           {tree{"bin": randomBytes(4, 53) + "\x00"}, tree{}},
		"binary became text":       {tree{"bin": "\x00"}, tree{"bin": "1\n"}},
		"binary became executable": {tree{"bin": "\x00"}, tree{"bin": "x:\x00\x00"}},
		"binary became empty":      {tree{"bin": "\x00"}, tree{"bin": ""}},
		"names": {
			tree{"with space": "1\n", "deleted space": "1\n", "tab\there": "1\n", `quo"te`: "1\n", `back\slash`: "1\n"},
			tree{
				"with space": "2\n", "new space": "1\n", "tab\there": "2\n", `quo"te`: "2\n", `back\slash`: "2\n",
				"naïve ✨.txt": "1\n", "new\nline": "1\n", "bad\xff": "1\n", "-dash": "1\n", " lead": "1\n", "trail ": "1\n",
				"dir with space/x y": "1\n", "a b/a b": "1\n", "bin space": "\x00", "empty space": "", "\x7f\x01": "1\n",
				"b": "1\n", "dev/null": "1\n",
			},
		},
		"modes and names with spaces": {tree{"a b": "1\n", "c d": "\x00"}, tree{"a b": "x:1\n", "c d": "x:\x00"}},
	}
}

func TestPatchTakesOneTreeToTheOther(t *testing.T) {
	for _, cases := range []map[string]treePair{textPatches(), otherPatches()} {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				patch, changes := patchOf(t, c.before, c.after)
				if (len(changes) == 0) != (patch == "") {
					t.Errorf("%d changes and a patch of %d bytes", len(changes), len(patch))
				}
				dir := t.TempDir()
				c.before.write(t, dir)
				if patch != "" {
					gitApply(t, dir, patch)
					readTree(t, dir).mustBe(t, c.after)
					gitApply(t, dir, patch, "-R")
				}
				readTree(t, dir).mustBe(t, c.before)
			})
		}
	}
}

func TestPatchOfRandomEdits(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString([]string{"a", "b", "}", "", "unique " + fmt.Sprint(r.IntN(30))}[r.IntN(5)])
			b.WriteByte('\n')
		}
		return b.String()[:max(0, b.Len()-r.IntN(2))]
	}
	before, after := make(tree), make(tree)
	for i := range 200 {
		name := fmt.Sprintf("dir%d/file%d", i%7, i)
		before[name] = text(r.IntN(60))
		switch r.IntN(6) {
		case 0:
		case 1:
			after[name] = text(r.IntN(60))
		default:
			all := strings.SplitAfter(before[name], "\n")
			for range r.IntN(4) {
				all[r.IntN(len(all))] = text(r.IntN(3))
			}
			after[name] = strings.Join(all, "")
		}
	}
	patch, changes := patchOf(t, before, after)
	if len(changes) == 0 {
		t.Fatal("nothing was changed")
	}
	dir := t.TempDir()
	before.write(t, dir)
	gitApply(t, dir, patch)
	readTree(t, dir).mustBe(t, after)
}

func TestChangesSayWhatHappened(t *testing.T) {
	_, changes := patchOf(
		t,
		tree{"same": "1\n", "gone": "22\n", "content": "1\n", "mode": "1\n", "link": "-> same", ".git/config": "1"},
		tree{"same": "1\n", "content": "22\n", "mode": "x:1\n", "link": "-> mode", "new": "x:1", ".git/config": "2", "dir/.git": "x"},
	)
	want := []Change{
		{Kind: Modified, Path: "content", OldMode: 0o644, NewMode: 0o644, OldSize: 2, NewSize: 3},
		{Kind: Deleted, Path: "gone", OldMode: 0o644, OldSize: 3},
		{Kind: Modified, Path: "link", OldMode: fs.ModeSymlink | 0o777, NewMode: fs.ModeSymlink | 0o777, OldSize: 4, NewSize: 4},
		{Kind: Modified, Path: "mode", OldMode: 0o644, NewMode: 0o755, OldSize: 2, NewSize: 2},
		{Kind: Created, Path: "new", NewMode: 0o755, NewSize: 1},
	}
	if got, want := fmt.Sprintf("%+v", changes), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("changes\n%s\nwant\n%s", got, want)
	}
}

func TestPatchLeavesNothingBehind(t *testing.T) {
	noFilesLeft(t)
	env := create(t, Config{Workspace: []Source{{Files: []File{{Path: "a", Content: "1\n"}}}}})
	if err := env.Primitive().WriteFile(t.Context(), "a", strings.NewReader("2\n"), writeOptions); err != nil {
		t.Fatal(err)
	}
	var patch bytes.Buffer
	if err := env.Patch(t.Context(), &patch); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(patch.String(), "-1\n+2\n") {
		t.Errorf("patch %q", patch.String())
	}
	if err := env.Patch(t.Context(), failingWriter{}); err == nil {
		t.Error("a writer that fails is no error")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
