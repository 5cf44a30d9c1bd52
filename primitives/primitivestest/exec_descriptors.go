package primitivestest

import (
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

// descriptorRules returns the rules that a command has its three streams and no descriptor of
// the host program or the guest.
func descriptorRules() []rule {
	const streams = "0 1 2"
	inherits := func(name string, list func(t testingT, s *sandbox) string) rule {
		return rule{name: name, check: func(t testingT, s *sandbox) {
			openStray(t)
			expect(t, "descriptors", strings.TrimSpace(list(t, s)), streams)
		}}
	}
	return []rule{
		inherits("a command inherits its three streams only", func(t testingT, s *sandbox) string {
			t.Helper()
			p := s.start(t, t.Context(), s.command("descriptors"))
			return s.readAll(t, p.Stdout())
		}),
		inherits("a command of Run inherits its three streams only", func(t testingT, s *sandbox) string {
			t.Helper()
			return s.probed(t, "descriptors")
		}),
		inherits("a command with input inherits its three streams only", func(t testingT, s *sandbox) string {
			t.Helper()
			res := s.run(t, s.command("descriptors"), primitives.RunOptions{Stdin: strings.NewReader("")})
			return string(res.Stdout)
		}),
		inherits("a command of another user inherits its three streams only", func(t testingT, s *sandbox) string {
			t.Helper()
			cmd := s.asUser(t, "4711:4711", "descriptors")
			if !s.Capabilities().Users {
				return streams // the rules about users check that there is no such command
			}
			return string(s.run(t, cmd, primitives.RunOptions{}).Stdout)
		}),
		{name: "a command on a terminal inherits its three streams only", check: func(t testingT, s *sandbox) {
			openStray(t)
			expect(t, "descriptors", strings.TrimSpace(s.terminal(t, "descriptors")), streams)
		}},
		durableRule("a durable command inherits its three streams only", func(t testingT, s *sandbox) {
			openStray(t)
			expect(t, "descriptors", strings.TrimSpace(s.readAll(t, s.durable(t, "descriptors").Stdout())), streams)
		}),
	}
}

// strays lets one case at a time have a stray: no sandbox can keep a descriptor from a command that
// another case opens while the command is started.
var strays sync.Mutex

// openStray opens a descriptor in this program that a child inherits, until the end of the
// case.
func openStray(t testingT) {
	t.Helper()
	strays.Lock()
	t.Cleanup(strays.Unlock)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatalf("opening a descriptor: %v", err)
	}
	stray, err := syscall.Dup(int(null.Fd()))
	if cerr := null.Close(); err != nil || cerr != nil {
		t.Fatalf("opening a descriptor: %v, %v", err, cerr)
	}
	t.Cleanup(func() { _ = syscall.Close(stray) })
}
