package environment

import (
	"context"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// pry is a program for perl. For each process of the runner it prints a line with the
// runner's command and with what it got of that process.
const pry = `
my $ptrace = qx(uname -m) =~ /x86_64/ ? 101 : 117;
for my $dir (grep { m{/\d+$} } glob "/proc/*") {
	open(my $line, "<", "$dir/cmdline") or next;
	my ($program, $command) = split /\0/, join "", <$line>;
	next unless defined $program and $program =~ m{/envrunner[^/]*$};
	my ($pid, @got) = $dir =~ /(\d+)/;
	for my $name (qw(environ maps auxv syscall mem)) {
		open(my $file, "<", "$dir/$name") or next;
		push @got, $name if $name eq "mem" or sysread $file, my $byte, 1;
	}
	push @got, "fd" if readlink "$dir/fd/0";
	push @got, "ptrace" if syscall($ptrace, 0x4206, $pid + 0, 0, 0) == 0; # PTRACE_SEIZE
	print "$command: @got\n";
}
`

// TestCommandsCannotLookIntoTheRunner: an agent's command belongs to the same user as
// the guest, the script that runs the agent and the feed of that script.
func TestCommandsCannotLookIntoTheRunner(t *testing.T) {
	root := container(t)
	root.Image = testdocker.Debian(t)
	other := root
	other.User = "4711:4711"
	modal := atModal(t) // whose root has all capabilities
	modal.User = "4711:4711"
	for name, box := range map[string]Sandbox{"docker": root, "docker, another user": other, "modal, another user": modal} {
		t.Run(name, func(t *testing.T) {
			env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, turn(
				runnerscripts.ScenarioStep{Run: []string{"sh", "-c", "perl pry.pl >got"}},
			))})
			t.Cleanup(func() {
				if err := Remove(context.WithoutCancel(t.Context()), box, env.ID()); err != nil {
					t.Error(err)
				}
			})
			writeIn(t, env, "pry.pl", pry)
			events, err := collect(t.Context(), env, Query{Prompt: "go"})
			if err != nil {
				t.Fatalf("%s: %v", types(events), err)
			}
			got, err := primitives.ReadFile(t.Context(), env.Primitive(), "got", 0)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			for line := range strings.Lines(string(got)) {
				command, what, _ := strings.Cut(line, ": ")
				found[command] = true
				if what = strings.TrimSpace(what); what != "" && command != "supervise" {
					t.Errorf("a command got %s of %s", what, command)
				}
			}
			for _, command := range []string{"guest", "feed", runnerscripts.ExecuteQuery} {
				if !found[command] {
					t.Errorf("no %s was found in %q", command, got)
				}
			}
		})
	}
}
