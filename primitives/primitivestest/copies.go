package primitivestest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// copyRules returns the rules about snapshots and forks.
func copyRules() []rule {
	return concat(forkRules(), forkLifeRules(), forkErrorRules(), snapshotRules())
}

// forkRule returns a rule that expects errors.ErrUnsupported if the sandbox cannot be copied.
func forkRule(name string, check func(t testingT, s *sandbox)) rule {
	return rule{name: name, own: true, check: func(t testingT, s *sandbox) {
		if s.Capabilities().Fork {
			check(t, s)
			return
		}
		copies, err := primitives.Fork(t.Context(), s.EnvironmentPrimitive, 1)
		expectError(t, "Fork", err, errors.ErrUnsupported)
		expect(t, "number of copies", len(copies), 0)
	}}
}

// copies creates copies that end with the case.
func (s *sandbox) copies(t testingT, n int) []*sandbox {
	t.Helper()
	made, err := primitives.Fork(t.Context(), s.EnvironmentPrimitive, n)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	boxes := make([]*sandbox, len(made))
	for i, p := range made {
		box := *s
		box.EnvironmentPrimitive = p
		box.probe = path.Join(p.Paths().App, "probe")
		box.token = fmt.Sprintf("%scopy%d.", s.token, s.suite.cases.Add(1))
		boxes[i] = &box
		t.Cleanup(func() { box.end(t) })
	}
	if len(made) != n {
		t.Fatalf("Fork made %d copies, want %d", len(made), n)
	}
	return boxes
}

// furnish writes the files by which copies are compared.
func (s *sandbox) furnish(t testingT) {
	t.Helper()
	s.write(t, "file", "content")
	s.write(t, "empty", "")
	s.write(t, "deep/er/file", "below")
	s.probed(t, "mkdir", "hollow", "chmod", "0700", "hollow", "chmod", "0750", "file", "symlink", "file", "link",
		"symlink", "../no/such", "dangling", "link", "file", "twin", "sparse", "1048576", "holes")
	home := path.Join(s.Paths().Home, "of-the-home")
	if err := s.WriteFile(t.Context(), home, strings.NewReader("at home"), primitives.WriteOptions{Mode: 0o600}); err != nil {
		t.Fatalf("writing into the home: %v", err)
	}
}

// inventory describes all files in the folder of the case and in the home.
func (s *sandbox) inventory(t testingT) string {
	t.Helper()
	var lines []string
	for _, dir := range []string{s.in(), s.Paths().Home} {
		infos, err := s.List(t.Context(), dir, primitives.ListOptions{Depth: -1})
		if err != nil {
			t.Fatalf("List %s: %v", dir, err)
		}
		for _, i := range infos {
			// Images are created from archives, whose times are in whole seconds.
			lines = append(lines, fmt.Sprintf("%s %v %d %d:%d %q %d", i.Path, i.Mode, i.Size, i.UID, i.GID, i.Target, i.ModTime.Unix()))
		}
	}
	return strings.Join(lines, "\n")
}

// expectFurnished checks that a copy has the files that furnish wrote.
func (s *sandbox) expectFurnished(t testingT, inventory string) {
	t.Helper()
	expect(t, "inventory", s.inventory(t), inventory)
	expect(t, "content", s.read(t, "file"), "content")
	expect(t, "content through the link", s.read(t, "link"), "content")
	expect(t, "content of the deep file", s.read(t, "deep/er/file"), "below")
	expect(t, "content as the sandbox sees it", s.probed(t, "show", "twin"), "content")
	b, err := primitives.ReadFile(t.Context(), s, path.Join(s.Paths().Home, "of-the-home"), 0)
	expect(t, "content in the home", string(b), "at home")
	expect(t, "error", err, nil)
}

func forkRules() []rule {
	return []rule{
		forkRule("a copy has the files, permissions, times and links of the original", func(t testingT, s *sandbox) {
			s.furnish(t)
			want := s.inventory(t)
			for _, c := range s.copies(t, 1) {
				c.expectFurnished(t, want)
			}
			expect(t, "inventory of the original", s.inventory(t), want)
		}),
		forkRule("what is changed after Fork is changed in one sandbox only", func(t testingT, s *sandbox) {
			for _, name := range []string{"by-original", "by-0", "by-1", "removed-by-0"} {
				s.write(t, name, "before")
			}
			c := s.copies(t, 2)
			s.write(t, "by-original", "after")
			c[0].probed(t, "write", "by-0", "after", "rm", "removed-by-0", "write", "made-by-0", "new")
			c[1].probed(t, "append", "by-1", " and after")
			state := func(s *sandbox) string {
				return s.read(t, "by-original") + "," + s.read(t, "by-0") + "," + s.read(t, "by-1") + "," + s.list(t, ".", primitives.ListOptions{})
			}
			const all = "by-0 by-1 by-original "
			expect(t, "the original", state(s), "after,before,before,"+all+"removed-by-0")
			expect(t, "the first copy", state(c[0]), "before,after,before,"+all+"made-by-0")
			expect(t, "the second copy", state(c[1]), "before,before,before and after,"+all+"removed-by-0")
		}),
		forkRule("a copy has the settings of the original and an identity of its own", func(t testingT, s *sandbox) {
			c := s.copies(t, 1)[0]
			expect(t, "same id", c.ID() == s.ID(), false)
			expect(t, "capabilities", c.Capabilities(), s.Capabilities())
			expect(t, "paths", c.Paths(), layout(c.Paths()))
			expect(t, "user", c.probed(t, "ids"), s.probed(t, "ids"))
			expect(t, "environment", c.settings(t), s.settings(t))
			state, err := c.Poll(t.Context())
			expect(t, "status", state.Status, primitives.StatusRunning)
			expect(t, "error of Poll", err, nil)
		}),
	}
}

// settings returns the environment of commands, without variables that name the sandbox.
func (s *sandbox) settings(t testingT) string {
	t.Helper()
	env := s.environment(t)
	slices.Sort(env)
	text := strings.ReplaceAll(strings.Join(env, "\n"), s.Paths().Session, "SESSION")
	var kept []string
	for line := range strings.Lines(text) {
		// The marks of the sandbox and its commands.
		if !strings.HasPrefix(line, "AGENTENV_") {
			kept = append(kept, line)
		}
	}
	return strings.ReplaceAll(strings.Join(kept, ""), s.ID(), "ID")
}

func forkLifeRules() []rule {
	return []rule{
		forkRule("the processes of the original go on, and only there", func(t testingT, s *sandbox) {
			p := s.running(t, "out", "ready\n", "out", "ready\n", "await", "go", "exit", "5")
			c := s.copies(t, 1)[0]
			c.write(t, "go", "") // must have no effect on the original
			report := c.terminate(t)
			expect(t, "processes in the copy", len(report.Killed), 0)
			s.write(t, "go", "")
			expect(t, "code", s.wait(t, p).Code, 5)
		}),
		forkRule("durable commands are not in the copies", func(t testingT, s *sandbox) {
			if !s.Capabilities().Durable {
				s.copies(t, 1)
				return
			}
			p := s.durable(t, "out", "first\n", "await", "go", "exit", "4")
			s.expectLines(t, p.Stdout(), "first", 1)
			c := s.copies(t, 1)[0]
			_, err := primitives.Reattach(t.Context(), c.EnvironmentPrimitive, p.ID(), primitives.Offset{})
			expectError(t, "Reattach in the copy", err, fs.ErrNotExist)
			s.write(t, "go", "")
			expect(t, "code", s.wait(t, s.reattach(t, p.ID(), primitives.Offset{})).Code, 4)
			d := c.durable(t, "out", "own\n", "exit", "6")
			expect(t, "output of the copy's own", c.readAll(t, d.Stdout()), "own\n")
			expect(t, "code of the copy's own", c.wait(t, d).Code, 6)
		}),
		forkRule("the copies outlive the original and can be copied themselves", func(t testingT, s *sandbox) {
			s.write(t, "f", "first")
			c := s.copies(t, 1)[0]
			s.terminate(t)
			c.write(t, "g", "second")
			grandchild := c.copies(t, 1)[0]
			c.terminate(t)
			expect(t, "content", grandchild.probed(t, "show", "f", "show", "g"), "firstsecond")
		}),
		{
			name: "Attach finds a copy by its id", own: true,
			possible: func(h Harness) bool { return h.Attach != nil },
			check: forkRule("", func(t testingT, s *sandbox) {
				s.write(t, "f", "kept")
				other := s.copies(t, 1)[0].attach(t)
				expect(t, "content", other.read(t, "f"), "kept")
			}).check,
		},
	}
}

func forkErrorRules() []rule {
	rules := []rule{
		forkRule("Fork of less than one copy is fs.ErrInvalid", func(t testingT, s *sandbox) {
			for _, n := range []int{0, -1} {
				copies, err := primitives.Fork(t.Context(), s.EnvironmentPrimitive, n)
				expectError(t, fmt.Sprintf("Fork of %d", n), err, fs.ErrInvalid)
				expect(t, "number of copies", len(copies), 0)
			}
		}),
		forkRule("Fork with a cancelled context makes nothing", func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			copies, err := primitives.Fork(ctx, s.EnvironmentPrimitive, 2)
			expectError(t, "Fork", err, context.Canceled)
			expect(t, "number of copies", len(copies), 0)
		}),
	}
	for i := range rules {
		rules[i].own = false // these rules create nothing
	}
	return rules
}

// copyOperations returns the optional calls that an ended sandbox refuses. Unlike the others, a
// paused sandbox accepts them.
func copyOperations() []operation {
	return []operation{
		{"Fork", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			copies, err := primitives.Fork(ctx, p, 1)
			for _, c := range copies {
				_, terr := c.Terminate(ctx)
				err = errors.Join(err, terr, c.Close())
			}
			return err
		}},
		{"Snapshot", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			_, err := primitives.Snapshot(ctx, p)
			return err
		}},
		{"Pause", primitives.Pause},
		{"Resume", primitives.Resume},
		{"ReadUsage", func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			_, err := primitives.ReadUsage(ctx, p)
			return err
		}},
	}
}

// snapshotRules returns the rules about snapshots. The files of a snapshot can only be checked
// if the harness creates sandboxes from it.
func snapshotRules() []rule {
	rules := []rule{
		{name: "a sandbox made of a snapshot has the files of then", own: true, check: func(t testingT, s *sandbox) {
			s.furnish(t)
			want := s.inventory(t)
			p := s.running(t, "out", "ready\n", "out", "ready\n", "await", "go", "exit", "5")
			id := s.snapshot(t)
			s.write(t, "file", "changed since")
			s.write(t, "go", "")
			expect(t, "code of what ran meanwhile", s.wait(t, p).Code, 5)
			s.terminate(t)
			restored, err := s.suite.h.Restore(t.Context(), s.suite.dir, id)
			if err != nil {
				t.Fatalf("a sandbox of the snapshot: %v", err)
			}
			box := *s
			box.EnvironmentPrimitive, box.probe = restored, path.Join(restored.Paths().App, "probe")
			t.Cleanup(func() { box.end(t) })
			expect(t, "paths", restored.Paths(), layout(restored.Paths()))
			box.expectFurnished(t, want)
		}},
		{name: "Snapshot with a cancelled context makes nothing", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			id, err := primitives.Snapshot(ctx, s.EnvironmentPrimitive)
			expectError(t, "Snapshot", err, context.Canceled)
			expect(t, "id", id, "")
		}},
	}
	for i, r := range rules {
		rules[i].check = func(t testingT, s *sandbox) {
			if s.Capabilities().Snapshot && s.suite.h.Restore != nil {
				r.check(t, s)
				return
			}
			if s.Capabilities().Snapshot {
				t.Errorf("the sandbox can be kept: give the suite a Harness.Restore")
				return
			}
			_, err := primitives.Snapshot(t.Context(), s.EnvironmentPrimitive)
			expectError(t, "Snapshot", err, errors.ErrUnsupported)
		}
	}
	return rules
}

// snapshot saves the files of the sandbox until the case is over.
func (s *sandbox) snapshot(t testingT) string {
	t.Helper()
	id, err := primitives.Snapshot(t.Context(), s.EnvironmentPrimitive)
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() {
		if s.suite.h.Forget != nil {
			expect(t, "error of removing the snapshot", s.suite.h.Forget(context.WithoutCancel(t.Context()), id), nil)
		}
	})
	return id
}
