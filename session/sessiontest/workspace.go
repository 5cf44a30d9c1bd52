package sessiontest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func files(r *run) {
	s := r.start(steps{write("dir/f", "content\n"), write("g", "")})
	r.converse(s, "a")
	list, err := s.Files(r.Context(), environment.FilesOptions{MaxContent: 100})
	r.must(err)
	var names []string
	for _, f := range list {
		names = append(names, f.Path)
	}
	if strings.Join(names, " ") != "dir/f g" || string(list[0].Content) != "content\n" || list[1].Content == nil {
		r.Errorf("the files are %q: %+v", names, list)
	}
	f, err := s.OpenFile(r.Context(), "dir/f")
	r.must(err)
	data, err := io.ReadAll(f)
	r.must(errors.Join(err, f.Close()))
	if string(data) != "content\n" {
		r.Errorf("dir/f is %q", data)
	}
}

func filesNone(r *run) {
	s := r.start(steps{say("x")})
	_, err := s.Files(r.Context(), environment.FilesOptions{})
	r.want("the list", err, session.ErrNoEnvironment)
	_, err = s.OpenFile(r.Context(), "f")
	r.want("a file", err, session.ErrNoEnvironment)
}

func filesMissing(r *run) {
	s := r.start(steps{say("x")})
	r.converse(s, "a")
	_, err := s.OpenFile(r.Context(), "nosuch")
	r.want("a file that does not exist", err, fs.ErrNotExist)
}

func syncNow(r *run) {
	s := r.start(steps{write("f", "1\n"), ask(write("asked", ""))})
	if c, err := s.Sync(r.Context()); err != nil || c.Number != 0 {
		r.Errorf("without a sandbox the checkpoint is %+v, %v", c, err)
	}
	t := r.prompt(s, "a")
	req := r.asked(s)
	c, err := s.Sync(r.Context())
	r.must(err)
	if state := r.state(s); c.Number == 0 || state.Checkpoint != c.Number || state.Checkpoints[len(state.Checkpoints)-1].Number != c.Number {
		r.Errorf("the checkpoint is %+v, the state says %d of %+v", c, state.Checkpoint, state.Checkpoints)
	}
	if got := r.changed(s, 1, c.Number); got != "created f" {
		r.Errorf("it has %q", got)
	}
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
}

// changed describes the changes between two checkpoints.
func (r *run) changed(s Session, from, to int) string {
	r.Helper()
	list, err := s.Changes(r.Context(), from, to)
	r.must(err)
	var words []string
	for _, c := range list {
		words = append(words, string(c.Kind)+" "+c.Path)
	}
	return strings.Join(words, ", ")
}

func changes(r *run) {
	s := r.start(steps{write("f", "1\n")}, steps{write("f", "2\n"), write("g", "1\n")})
	r.converse(s, "a")
	middle := r.state(s).Checkpoint
	r.converse(s, "b")
	last := r.state(s).Checkpoint
	for _, c := range []struct {
		from, to int
		want     string
	}{{1, middle, "created f"}, {middle, last, "modified f, created g"}, {1, 0, "created f, created g"}, {last, 1, "deleted f, deleted g"}, {last, last, ""}} {
		if got := r.changed(s, c.from, c.to); got != c.want {
			r.Errorf("from %d to %d: %q, want %q", c.from, c.to, got, c.want)
		}
	}
	var patch strings.Builder
	r.must(s.Patch(r.Context(), &patch, middle, last))
	if text := patch.String(); !strings.Contains(text, "-1\n+2\n") || !strings.Contains(text, "new file mode 100644") {
		r.Errorf("the patch is\n%s", text)
	}
}

func changesUnknown(r *run) {
	s := r.start(steps{write("f", "1\n")})
	r.converse(s, "a")
	_, err := s.Changes(r.Context(), 1, 99)
	r.want("changes to a checkpoint that does not exist", err, fs.ErrNotExist)
	r.want("its patch", s.Patch(r.Context(), io.Discard, 99, 0), fs.ErrNotExist)
	r.want("a return to it", s.Rewind(r.Context(), 99), fs.ErrNotExist)
	_, err = s.ForkFrom(r.Context(), 99, 1)
	r.want("a fork from it", err, fs.ErrNotExist)
}

func rewind(r *run) {
	s := r.start(steps{shell("echo {{prompt}} >> f"), say("after {{history}}")})
	r.converse(s, "a")
	back := r.state(s).Checkpoint
	r.converse(s, "b")
	before := len(r.log(s))
	r.must(s.Rewind(r.Context(), back))
	if after := r.log(s); len(after) <= before || after[len(after)-1].Type != runnerscripts.TypeRewound {
		r.Errorf("the log had %d events and has %d", before, len(after))
	}
	later := r.state(s).Checkpoints
	if got := r.converse(s, "c"); got != "after a" {
		r.Errorf("the agent said %q", got)
	}
	if got := r.content(s, "f"); got != "a\nc\n" {
		r.Errorf("f is %q", got)
	}
	// To what was there before the return.
	r.must(s.Rewind(r.Context(), later[len(later)-1].Number))
	r.converse(s, "d")
	if got := r.content(s, "f"); got != "a\nb\nd\n" {
		r.Errorf("after the way back f is %q", got)
	}
}

func rewindBusy(r *run) {
	s := r.start(steps{write("f", "1\n")}, steps{ask(write("asked", ""))})
	r.converse(s, "a")
	t := r.prompt(s, "b")
	req := r.asked(s)
	r.want("a return while a query runs", s.Rewind(r.Context(), 1), session.ErrBusy)
	_, err := s.Fork(r.Context(), 1)
	r.want("a fork while a query runs", err, session.ErrBusy)
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
}

func fork(r *run) {
	s := r.start(steps{write("f", "{{prompt}}\n"), say("{{prompt}} after {{history}}")})
	r.converse(s, "a")
	copies, err := s.Fork(r.Context(), 2)
	r.must(err)
	if len(copies) != 2 || copies[0].ID() == copies[1].ID() || copies[0].ID() == s.ID() {
		r.Fatalf("%d copies", len(copies))
	}
	for i, c := range append(copies, s) {
		word := []string{"b", "c", "d"}[i]
		if got := r.converse(c, word); got != word+" after a" {
			r.Errorf("%s said %q", c.ID(), got)
		}
	}
	for i, c := range append(copies, s) {
		if got, want := r.content(c, "f"), []string{"b\n", "c\n", "d\n"}[i]; got != want {
			r.Errorf("f of %s is %q, want %q", c.ID(), got, want)
		}
	}
	if first := r.log(copies[0])[0]; first.Seq != 1 || first.Type != runnerscripts.TypeQueryQueued {
		r.Errorf("a copy's log begins with %+v", first)
	}
}

func forkFrom(r *run) {
	s := r.start(steps{write("f", "{{prompt}}\n"), say("after {{history}}")})
	r.converse(s, "a")
	at := r.state(s).Checkpoint
	r.converse(s, "b")
	copies, err := s.ForkFrom(r.Context(), at, 1)
	r.must(err)
	if got := r.converse(copies[0], "c"); got != "after a" {
		r.Errorf("the copy said %q", got)
	}
	if got := r.content(s, "f"); got != "b\n" {
		r.Errorf("f of the session is %q", got)
	}
}

func forkNone(r *run) {
	s := r.start(steps{say("x")})
	r.converse(s, "a")
	for _, n := range []int{0, -1} {
		_, err := s.Fork(r.Context(), n)
		r.want("a fork", err, fs.ErrInvalid)
		_, err = s.ForkFrom(r.Context(), 1, n)
		r.want("a fork from a checkpoint", err, fs.ErrInvalid)
	}
}

// packed returns an archive of one file with a text.
func packed(name, text string) io.ReadSeeker {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // a buffer takes everything
	}
	return bytes.NewReader(b.Bytes())
}

func writeWorkspace(r *run) {
	r.env.Workspace = []environment.Source{{Files: []environment.File{{Path: "own"}}}}
	s := r.start(steps{say("x")}, steps{write("g", "")})
	r.must(s.WriteWorkspace(r.Context(), packed("dir/f", "written\n")))
	r.must(s.WriteWorkspace(r.Context(), packed("dir/f", "written\n"))) // the answer may have been lost
	r.converse(s, "a")
	list, err := s.Files(r.Context(), environment.FilesOptions{MaxContent: 100})
	r.must(err)
	if len(list) != 1 || list[0].Path != "dir/f" || string(list[0].Content) != "written\n" {
		r.Errorf("the files are %+v", list)
	}
	r.converse(s, "b")
	if got := r.changed(s, 1, 0); got != "created g" {
		r.Errorf("since then: %q", got)
	}
}

func writeWorkspaceRefused(r *run) {
	s := r.start(steps{say("x")})
	r.want("no archive", s.WriteWorkspace(r.Context(), strings.NewReader("no archive")), fs.ErrInvalid)
	r.must(s.WriteWorkspace(r.Context(), packed("f", "1")))
	r.want("other files", s.WriteWorkspace(r.Context(), packed("f", "2")), fs.ErrExist)
	r.converse(s, "a")
	r.want("a session in use", s.WriteWorkspace(r.Context(), packed("f", "1")), session.ErrBusy)
}
