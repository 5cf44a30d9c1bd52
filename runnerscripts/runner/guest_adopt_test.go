package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// serveGuestWith starts a guest with the given flags and environment.
func serveGuestWith(t *testing.T, env []string, flags ...string) (*exec.Cmd, *guest.Sandbox) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), runnerFile(t), append([]string{"guest"}, flags...)...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := guest.Dial(t.Context(), guest.Stdio(stdout, stdin), guest.Config{})
	if err != nil {
		t.Fatalf("%v; stderr: %s", err, &stderr)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = cmd.Wait() // the test kills one of the guests
	})
	return cmd, client
}

func TestTheOnlySessionFolderIsAdoptedOrANewOneIsMade(t *testing.T) {
	root := t.TempDir()
	flags := []string{"--root", root, "--leave-files", "--adopt", "-"}
	first, client := serveGuestWith(t, nil, flags...)
	session := client.Paths().Session
	if err := client.WriteFile(t.Context(), "f", strings.NewReader("kept"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := first.Process.Kill(); err != nil { // a snapshot cuts the guest off like that
		t.Fatal(err)
	}
	<-client.Done()
	_, client = serveGuestWith(t, nil, flags...)
	if got := client.Paths().Session; got != session {
		t.Errorf("the session folder is %s, want that of the first guest, %s", got, session)
	}
	b, err := primitives.ReadFile(t.Context(), client, "f", 0)
	if err != nil || string(b) != "kept" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func TestCommandsInheritTheGuestsEnvironmentIfTheyAreTo(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin", "SECRET=known", "OWN=no", "HOME=/nowhere", "VAR_0=OWN=later", "VAR_1=MORE=x"}
	command := primitives.Command{Args: []string{"sh", "-c", "echo $SECRET-$OWN$MORE$VAR_0-$HOME"}}
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--inherit-env", "--env", "OWN=yes"}, "known-yesOWN=later-"},
		{[]string{"--env", "OWN=yes"}, "-yes-"},
		{[]string{"--inherit-env", "--env", "OWN=yes", "--env-from", "VAR_"}, "known-laterx-"},
		{[]string{"--env", "OWN=yes", "--env-from", "VAR_"}, "-laterx-"},
	} {
		_, client := serveGuestWith(t, env, append([]string{"--root", t.TempDir()}, c.flags...)...)
		res, err := primitives.Run(t.Context(), client, command, primitives.RunOptions{})
		if want := c.want + client.Paths().Home + "\n"; err != nil || string(res.Stdout) != want {
			t.Errorf("with %q a command prints %q, %v, want %q", c.flags, res.Stdout, err, want)
		}
	}
}

func TestAGuestTellsWhetherOthersAreAttached(t *testing.T) {
	root := t.TempDir()
	attended := func() bool {
		t.Helper()
		err := exec.CommandContext(t.Context(), runnerFile(t), "guest", "--root", root, "--attach", "-", "--attended").Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
			t.Fatal(err)
		}
		return err == nil
	}
	if attended() {
		t.Error("a client is attached to no sandbox")
	}
	serveGuestWith(t, nil, "--root", root)
	if attended() {
		t.Error("the guest that made the sandbox counts as attached")
	}
	cmd, client := serveGuestWith(t, nil, "--root", root, "--attach", "-", "--linger")
	if !attended() {
		t.Error("no client is attached")
	}
	if err := errors.Join(client.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if attended() {
		t.Error("a guest that has ended is still attached")
	}
}
