package session

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestFilesThatAreRefusedAreNotStored(t *testing.T) {
	t.Parallel()
	r := &removals{Store: store.NewMemory()}
	cfg := scripted(t, steps(say("x")))
	cfg.Store = r
	s := start(t, cfg)
	if err := s.WriteWorkspace(t.Context(), bytes.NewReader(archived(t, "f", "kept"))); err != nil {
		t.Fatal(err)
	}
	before := len(r.put)
	if err := s.WriteWorkspace(t.Context(), bytes.NewReader(archived(t, "f", "other"))); !errors.Is(err, fs.ErrExist) {
		t.Errorf("other files: %v", err)
	}
	if added := r.put[before:]; len(added) != 2 || len(r.removed) != 2 {
		t.Errorf("of the blobs %q, %q were removed", added, r.removed)
	}
	converse(t, s, "a")
	if got, _ := written(t, s, "f"); got != "kept" {
		t.Errorf("f is %q", got)
	}
}

// archived returns a tar archive of one file.
func archived(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o640, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAWrittenWorkspaceIsThereInLaterProgramsAndCopies(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(archived(t, "dir/f", "written")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), s.WriteWorkspace(t.Context(), &zipped)); err != nil {
		t.Fatal(err)
	}
	copies, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = copies[0].Close() }() // only a failed test needs it
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	for what, s := range map[string]*AgentSession{"a later program": start(t, cfg), "a copy": copies[0]} {
		converse(t, s, "a")
		if got, _ := written(t, s, "dir/f"); got != "written" {
			t.Errorf("%s finds %q", what, got)
		}
		if c := s.head(); c.Number != 2 || c.Parent != 1 {
			t.Errorf("%s: checkpoint %+v", what, c)
		}
	}
	if err := copies[0].Close(); err != nil {
		t.Error(err)
	}
}

func TestAWorkspaceThatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 100_000)
	for what, c := range map[string]struct {
		change func(*Config)
		want   error
		says   string
	}{
		"a session without files":     {func(c *Config) { c.NoFiles = true }, fs.ErrInvalid, "leave NoFiles"},
		"a folder of the user":        {func(c *Config) { c.Environment.Sandbox.Workspace = t.TempDir() }, fs.ErrInvalid, "Sandbox.Workspace"},
		"what checkpoints leave out":  {func(c *Config) { c.Environment.Checkpoints.Ignore = []string{"f"} }, fs.ErrInvalid, "Checkpoints.Ignore"},
		"more than a checkpoint has":  {func(c *Config) { c.Environment.Checkpoints.MaxSize = 50_000 }, primitives.ErrLimit, "50000"},
		"more than the session keeps": {func(c *Config) { c.MaxSessionSize = 50_000 }, primitives.ErrLimit, "50000"},
	} {
		cfg := scripted(t, steps(say("x")))
		c.change(&cfg)
		s := start(t, cfg)
		err := s.WriteWorkspace(t.Context(), bytes.NewReader(archived(t, "f", large)))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if s.lastSeq() != 0 {
			t.Errorf("%s left events", what)
		}
	}
	// One that is cut off, or leads out, stores nothing either.
	s := start(t, scripted(t, steps(say("x"))))
	cut := archived(t, "f", large)[:50_000]
	if err := s.WriteWorkspace(t.Context(), bytes.NewReader(cut)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if err := s.WriteWorkspace(t.Context(), bytes.NewReader(archived(t, "../f", ""))); !errors.Is(err, primitives.ErrPathEscape) {
		t.Errorf("a path that leads out: %v", err)
	}
	if s.lastSeq() != 0 {
		t.Error("there are events")
	}
}
