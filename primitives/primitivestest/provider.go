package primitivestest

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// providerRules returns the rules about what a provider reports about its sandboxes, and what
// happens to them when the program that created them dies.
func providerRules() []rule {
	rules := []rule{
		{name: "List says that the program of a sandbox lives, and what the sandbox is for", check: func(t testingT, s *sandbox) {
			provider, spec := s.suite.h.Provider(s.suite.dir)
			spec.Session = "conversation-" + s.token
			box, err := provider.Create(t.Context(), spec)
			if err != nil {
				t.Fatalf("Create: %v", err)
			}
			t.Cleanup(func() { endBox(t, box) })
			info := s.listed(t, provider, box.ID())
			expect(t, "status", info.Status, primitives.StatusRunning)
			expect(t, "owned", info.Owned, true)
			expect(t, "kept", info.Kept, false)
			expect(t, "orphan", info.Orphan, false)
			expect(t, "session", info.Session, spec.Session)
			expect(t, "time of creation is known", info.Created.IsZero(), false)
		}},
		{name: "the next sandbox has a new workspace at the path of the last one", check: checkSamePath},
		{name: "a kept sandbox whose program was killed is not owned, works on and can be removed", check: checkKeptOrphan},
		{name: "a sandbox whose program was killed is an orphan within its grace", check: func(t testingT, s *sandbox) {
			provider, spec := s.suite.h.Provider(s.suite.dir)
			spec.Grace = 10 * time.Minute
			report, kill := s.suite.client(t, clientTask{Create: &spec, Hold: true})
			removeLater(t, provider, report.ID)
			expect(t, "owned by a live program", s.listed(t, provider, report.ID).Owned, true)
			kill()
			info := s.listed(t, provider, report.ID)
			expect(t, "owned", info.Owned, false)
			expect(t, "kept", info.Kept, false)
			expect(t, "orphan", info.Orphan, true)
		}},
	}
	for i := range rules {
		rules[i].possible = func(h Harness) bool { return h.Provider != nil }
	}
	return rules
}

// checkSamePath checks Spec.WorkspacePath. While the sandbox at the path lives, a second one is refused or
// has files of its own.
func checkSamePath(t testingT, s *sandbox) {
	provider, spec := s.suite.h.Provider(s.suite.dir)
	spec.Session = "conversation-" + s.token
	first, err := provider.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	at := first.Paths().Workspace
	err = first.WriteFile(t.Context(), "mine", strings.NewReader("x"), primitives.WriteOptions{})
	expect(t, "error of WriteFile", err, nil)
	spec.WorkspacePath = at
	check := func(box primitives.EnvironmentPrimitive) {
		expect(t, "path of the workspace", box.Paths().Workspace, at)
		_, err := box.Stat(t.Context(), "mine")
		expectError(t, "Stat of a file of the other sandbox", err, fs.ErrNotExist)
		endBox(t, box)
	}
	if beside, err := provider.Create(t.Context(), spec); err == nil {
		check(beside)
	}
	info, err := first.Stat(t.Context(), "mine")
	expect(t, "error of Stat in the first sandbox", err, nil)
	expect(t, "size of its file", info.Size, 1)
	endBox(t, first)
	next, err := provider.Create(t.Context(), spec)
	if errors.Is(err, errors.ErrUnsupported) {
		return // the kind has no paths to choose
	}
	if err != nil {
		t.Fatalf("Create after the end of the first sandbox: %v", err)
	}
	check(next)
}

func checkKeptOrphan(t testingT, s *sandbox) {
	provider, spec := s.suite.h.Provider(s.suite.dir)
	spec.Keep = true
	task := clientTask{Create: &spec, Probe: s.suite.probeFile(t, s.Capabilities()), Hold: true}
	durable := s.Capabilities().Durable
	if durable {
		task.Commands = []primitives.Command{{Args: []string{"./probe", "out", "first\n", "await", "go", "exit", "4"}, Durable: true}}
	}
	report, kill := s.suite.client(t, task)
	removeLater(t, provider, report.ID)
	expect(t, "owned by a live program", s.listed(t, provider, report.ID).Owned, true)
	kill()
	info := s.listed(t, provider, report.ID)
	expect(t, "status", info.Status, primitives.StatusRunning)
	expect(t, "owned", info.Owned, false)
	expect(t, "kept", info.Kept, true)
	expect(t, "orphan", info.Orphan, false)
	box, err := provider.Attach(t.Context(), report.ID)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	t.Cleanup(func() { expect(t, "error of Close", box.Close(), nil) })
	expect(t, "owned with a program attached that did not create it", s.listed(t, provider, report.ID).Owned, false)
	other := *s
	other.EnvironmentPrimitive, other.dir = box, "."
	if durable {
		p := other.reattach(t, report.IDs[0], primitives.Offset{})
		other.write(t, "go", "")
		expect(t, "status", other.wait(t, p), primitives.ExitStatus{Code: 4, Reason: primitives.ReasonExited})
	}
	expect(t, "error of Remove", provider.Remove(t.Context(), report.ID), nil)
	list, err := provider.List(t.Context())
	expect(t, "error of List", err, nil)
	expect(t, "listed after Remove", slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == report.ID }), false)
	expectError(t, "Remove once more", provider.Remove(t.Context(), report.ID), fs.ErrNotExist)
}

// listed returns the entry of a sandbox in List.
func (s *sandbox) listed(t testingT, provider primitives.Provider, id string) primitives.Info {
	t.Helper()
	list, err := provider.List(t.Context())
	i := slices.IndexFunc(list, func(info primitives.Info) bool { return info.ID == id })
	if err != nil || i < 0 {
		t.Fatalf("List has no %s: %+v, %v", id, list, err)
	}
	return list[i]
}

// removeLater removes a sandbox of another program at the end of the case, if it still exists.
func removeLater(t testingT, provider primitives.Provider, id string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if err := provider.Remove(ctx, id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Remove: %v", err)
		}
	})
}

func endBox(t testingT, box primitives.EnvironmentPrimitive) {
	t.Helper()
	_, err := box.Terminate(context.WithoutCancel(t.Context()))
	if err = errors.Join(err, box.Close()); err != nil {
		t.Errorf("ending a sandbox: %v", err)
	}
}
