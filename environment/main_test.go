package environment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(hostVariable); config != "" {
		if err := beHost(context.Background(), config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := os.Setenv("TEST_HOST_KEY", hostKey); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testleak.Exit(testmodal.Check(testdocker.Main(m)))
}

// sandbox returns the configuration of a sandbox in a folder of the test.
func sandbox(t *testing.T) Sandbox {
	t.Helper()
	return Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}
}

// withBlock returns a sandbox whose Provider is a changed copy of that of box.
func withBlock[P any](box Sandbox, change func(*P)) Sandbox {
	p := new(P)
	if given, ok := any(box.Provider).(*P); ok {
		*p = *given
	}
	change(p)
	box.Provider, _ = any(p).(primitives.Provider)
	return box
}

// rootOf returns the folder of the sandboxes of a local sandbox's configuration.
func rootOf(box Sandbox) string {
	p, _ := box.Provider.(*local.Provider)
	return p.Root
}

// toKeep returns the configuration of a sandbox that outlives its environment.
func toKeep(box Sandbox) Sandbox {
	box.Keep = true
	return box
}

// boxes returns the configurations of sandboxes of all types.
func boxes(t *testing.T) map[string]Sandbox {
	t.Helper()
	return map[string]Sandbox{"local": sandbox(t), "docker": container(t), "modal": atModal(t), "ssh": onAnotherMachine(t)}
}

// onAnotherMachine returns the configuration of a sandbox behind a real sshd.
func onAnotherMachine(t *testing.T) Sandbox {
	t.Helper()
	testssh.Start(t)
	return Sandbox{Type: "ssh", Provider: &ssh.Provider{Host: testssh.Alias, Root: t.TempDir()}}
}

// container returns the configuration of a small sandbox in a container.
func container(t *testing.T) Sandbox {
	t.Helper()
	return Sandbox{Type: "docker", Spec: primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: &docker.Provider{Pull: docker.PullNever}}
}

// everywhere runs a test in a sandbox of every type, in parallel.
func everywhere(t *testing.T, test func(t *testing.T, box Sandbox)) {
	t.Helper()
	for name, box := range boxes(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, box)
		})
	}
}

// workspaceOf reads the workspace as readTree does, in any sandbox.
func workspaceOf(t *testing.T, env *Environment) tree {
	t.Helper()
	files, err := env.WorkspaceFiles(t.Context(), FilesOptions{Ignore: []string{".git"}, MaxContent: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	tr := make(tree)
	for _, f := range files {
		switch {
		case f.Target != "":
			tr[f.Path] = "-> " + f.Target
		case f.Mode&0o100 != 0:
			tr[f.Path] = "x:" + string(f.Content)
		default:
			tr[f.Path] = string(f.Content)
		}
	}
	return tr
}

// writeIn writes a file of the workspace.
func writeIn(t *testing.T, env *Environment, name, content string) {
	t.Helper()
	if err := env.Primitive().WriteFile(t.Context(), name, strings.NewReader(content), writeOptions); err != nil {
		t.Fatal(err)
	}
}

// create creates an environment that is closed at the end of the test.
func create(t *testing.T, cfg Config) *Environment {
	t.Helper()
	if cfg.Sandbox.Type == "" {
		cfg.Sandbox = sandbox(t)
	}
	env, err := Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return env
}

// shell returns a script that runs a shell text.
func shell(text string) []string { return []string{"/bin/sh", "-c", text} }

// fine returns a script that does nothing.
func fine() []string { return shell(`cat >/dev/null; echo '{"type":"result","ok":true}'`) }

// withQuery creates an environment whose execute-query is a shell text.
func withQuery(t *testing.T, text string) *Environment {
	t.Helper()
	return create(t, Config{
		Scripts:      Scripts{SetupSession: fine(), ExecuteQuery: shell(text), ReadTranscript: fine()},
		OnPermission: AnswerLater, PermissionTimeout: -1,
	})
}

// collect runs a query to its end.
func collect(ctx context.Context, env *Environment, q Query) (events []runnerscripts.Event, err error) {
	for ev, err := range env.ExecuteQuery(ctx, q) {
		if err != nil {
			return events, err
		}
		events = append(events, ev)
	}
	return events, nil
}

// types lists the types of events.
func types(events []runnerscripts.Event) string {
	names := make([]string, len(events))
	for i, ev := range events {
		names[i] = string(ev.Type)
	}
	return strings.Join(names, " ")
}

// noFilesLeft fails the test if it leaves temporary files.
func noFilesLeft(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range left {
			t.Errorf("left behind: %s", entry.Name())
		}
	})
}

// writeOptions are the default options.
var writeOptions primitives.WriteOptions
