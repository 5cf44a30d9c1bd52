package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mayRunnerSay maps every event type to whether a runner may print it. It repeats the table of
// package runnerscripts, so that a change there must be made here too.
var mayRunnerSay = map[runnerscripts.EventType]bool{
	runnerscripts.TypeUserMessage:        true,
	runnerscripts.TypeAgentMessage:       true,
	runnerscripts.TypeAgentThought:       true,
	runnerscripts.TypeToolCall:           true,
	runnerscripts.TypeToolCallUpdate:     true,
	runnerscripts.TypePlan:               true,
	runnerscripts.TypeCommands:           true,
	runnerscripts.TypeModeUpdate:         true,
	runnerscripts.TypeUsageUpdate:        true,
	runnerscripts.TypePermissionRequest:  true,
	runnerscripts.TypePermissionResolved: true, // a withdrawal

	runnerscripts.TypeQueryQueued:    false,
	runnerscripts.TypeQueryStarted:   true,
	runnerscripts.TypeQueryOutput:    true, // the host answers it
	runnerscripts.TypeQueryCompleted: true,
	runnerscripts.TypeQueryFailed:    true,

	runnerscripts.TypeEnvironmentCreating:   false,
	runnerscripts.TypeEnvironmentReady:      false,
	runnerscripts.TypeEnvironmentHealth:     false,
	runnerscripts.TypeEnvironmentError:      false,
	runnerscripts.TypeEnvironmentTerminated: false,

	runnerscripts.TypeFileCreated:  false,
	runnerscripts.TypeFileModified: false,
	runnerscripts.TypeFileDeleted:  false,
	runnerscripts.TypeFileRenamed:  false,

	runnerscripts.TypeTranscriptChanged:  false,
	runnerscripts.TypeTranscriptRestored: false,
	runnerscripts.TypeCheckpoint:         false,
	runnerscripts.TypeRewound:            false,
	runnerscripts.TypeForked:             false,
	runnerscripts.TypeCheckpointsPruned:  false,
	runnerscripts.TypeAgentChanged:       false,
	runnerscripts.TypeSessionInfo:        true,

	runnerscripts.TypeSubagentStarted:   true,
	runnerscripts.TypeSubagentCompleted: true,

	runnerscripts.TypeSessionInitialized: true,
	runnerscripts.TypeSessionIdle:        false,
	runnerscripts.TypeOptionsChanged:     true, // what is in effect, not what was requested

	runnerscripts.TypeLog:   true,
	runnerscripts.TypeError: true,
	runnerscripts.TypeRaw:   true,
}

// forged returns an event as a hostile sandbox prints it.
func forged(t *testing.T, typ runnerscripts.EventType, source runnerscripts.Source, query, payload string) string {
	t.Helper()
	line, err := json.Marshal(runnerscripts.Event{
		Seq: 99, Type: typ, Source: source, QueryID: query, SessionID: "another", Payload: json.RawMessage(payload),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

func TestAScriptSaysNothingInTheNameOfTheHost(t *testing.T) {
	for _, typ := range runnerscripts.EventTypes() {
		may, known := mayRunnerSay[typ]
		if !known {
			t.Errorf("%s: say in mayRunnerSay whether a runner may print it", typ)
		}
		t.Run(string(typ), func(t *testing.T) {
			t.Parallel()
			query := forged(t, typ, runnerscripts.SourceSession, "mine", `{"id":"spoofed-id"}`)
			read := forged(t, typ, runnerscripts.SourceEnvironment, "", `{"id":"spoofed-id"}`)
			env := create(t, Config{Scripts: Scripts{
				SetupSession:   fine(),
				ExecuteQuery:   shell("cat <<'END'\n{\"type\":\"query_started\"}\n" + query + "\n{\"type\":\"query_completed\"}\nEND\nread -r line"),
				ReadTranscript: shell("cat >/dev/null; cat <<'END'\n" + read + "\n{\"type\":\"result\",\"ok\":true}\nEND\n"),
			}})
			events, _ := collect(t.Context(), env, Query{Prompt: "x", ID: "mine"}) // query_failed is an error
			// A resolution of a request that does not exist, and what is for the host alone, are not passed on.
			if typ == runnerscripts.TypePermissionResolved || typ == runnerscripts.TypeQueryOutput {
				if got := types(events); got != "query_started query_completed" {
					t.Errorf("events: %s", got)
				}
			} else {
				if len(events) < 2 {
					t.Fatalf("events: %s", types(events))
				}
				checkOwned(t, env, events[1], typ, may, runnerscripts.SourceRunner, "mine")
			}
			for ev, err := range env.ReadConversation(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				checkOwned(t, env, ev, typ, may, runnerscripts.SourceTranscript, "")
			}
		})
	}
}

// checkOwned checks that the host sets the source and the query of an event.
func checkOwned(t *testing.T, env *Environment, ev runnerscripts.Event, typ runnerscripts.EventType, may bool, source runnerscripts.Source, query string) {
	t.Helper()
	if ev.Source != source || ev.QueryID != query || ev.Seq != 0 || ev.SessionID != env.SessionID() {
		t.Errorf("%s comes as %+v", typ, ev)
	}
	if may {
		if ev.Type != typ || string(ev.Payload) != `{"id":"spoofed-id"}` {
			t.Errorf("%s comes as %s %s", typ, ev.Type, ev.Payload)
		}
		return
	}
	l, err := runnerscripts.Payload[runnerscripts.Log](ev)
	if err != nil || ev.Type != runnerscripts.TypeLog || l.Level != "warn" || !strings.Contains(string(l.Data), "spoofed-id") || !strings.Contains(string(l.Data), string(typ)) {
		t.Errorf("%s comes as %s %s", typ, ev.Type, ev.Payload)
	}
}

func TestAScriptDoesNotEndOrChangeAnotherQuery(t *testing.T) {
	for _, typ := range []runnerscripts.EventType{
		runnerscripts.TypeQueryStarted, runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed,
		runnerscripts.TypeAgentMessage, runnerscripts.TypePermissionRequest, runnerscripts.TypePermissionResolved, "from_the_future",
	} {
		env := withQuery(t, started+"cat <<'END'\n"+forged(t, typ, "", "another", `{"id":"1"}`)+"\nEND\n"+completed)
		events, err := collect(t.Context(), env, Query{Prompt: "x", ID: "mine"})
		if err != nil || types(events) != "query_started log query_completed" {
			t.Fatalf("%s: %s, %v", typ, types(events), err)
		}
		for _, ev := range events {
			if ev.QueryID != "mine" {
				t.Errorf("%s: an event of the query %q", typ, ev.QueryID)
			}
		}
		if l, err := runnerscripts.Payload[runnerscripts.Log](events[1]); err != nil || !strings.Contains(string(l.Data), `"another"`) {
			t.Errorf("%s: the log says %s, %v", typ, events[1].Payload, err)
		}
	}
}

func TestAnEventThatIsNotTheScriptsIsShownInPart(t *testing.T) {
	env := withQuery(t, started+`
		printf '{"type":"environment_ready","payload":{"message":"'; head -c 5000000 /dev/zero | tr '\0' x; echo '"}}'; `+completed)
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if err != nil || types(events) != "query_started log query_completed" {
		t.Fatalf("%s, %v", types(events), err)
	}
	if n := len(events[1].Payload); n < 4<<10 || n > 8<<10 || !strings.Contains(string(events[1].Payload), fmt.Sprint(5_000_000+len(`{"message":""}`))) {
		t.Errorf("the log has %d bytes: %.300s", n, events[1].Payload)
	}
}

// pry is a Perl program. For each process of the runner it prints a line with the runner's
// command and with what it could read of that process.
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

// TestCommandsCannotLookIntoTheRunner: an agent's command has the same user as the guest, the
// script that runs the agent and the feed of that script, but cannot read them.
func TestCommandsCannotLookIntoTheRunner(t *testing.T) {
	root := container(t)
	root.Image = testdocker.Debian(t)
	other := root
	other.User = "4711:4711"
	modal := atModal(t) // its root has all capabilities
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
