package main

import (
	"bytes"
	"errors"
	"io"
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
	client, err := guest.Dial(t.Context(), guest.Stdio(stdout, stdin), guest.Config{HandshakeTimeout: tooLong})
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

// The engine starts the container of a kept sandbox again without a program that connects to the
// guest.
func TestOnlyAGuestThatIsStartedAgainStaysWithoutAHost(t *testing.T) {
	root := t.TempDir()
	guestOf := func(name string, flags ...string) *exec.Cmd {
		flags = append([]string{"guest", "--root", root, "--leave-files", "--adopt", "-", "--name", name}, flags...)
		return exec.CommandContext(t.Context(), runnerFile(t), flags...) // standard input is at its end
	}
	unmet := func(name string) {
		t.Helper()
		err := guestOf(name, "--stay", "-1s").Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != guest.ExitUnmet {
			t.Errorf("the first guest of %s: %v, want exit status %d: nobody knows the sandbox", name, err, guest.ExitUnmet)
		}
	}
	unmet("box")
	again := guestOf("box", "--stay", "-1s")
	stderr, err := again.StderrPipe()
	if err == nil {
		err = again.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1)
	if _, err := stderr.Read(said); err != nil {
		t.Fatal("it said nothing about its missing host:", err)
	}
	attached, client := serveGuestWith(t, nil, "--root", root, "--attach", "-", "--linger")
	if _, err := primitives.Run(t.Context(), client, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{}); err != nil {
		t.Error("a command in the sandbox of the guest that stays:", err)
	}
	_, err = client.Terminate(t.Context())
	if err := errors.Join(err, client.Close(), attached.Wait()); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stderr)
	if err := again.Wait(); err != nil {
		t.Errorf("the guest of a terminated sandbox: %v, want exit status 0", err)
	}
	unmet("fork") // with the files of the other one
	if err := guestOf("fork", "--stay", "1ms", "--min-age", "1ms").Run(); err != nil {
		t.Errorf("a guest whose time is over: %v, want exit status 0", err)
	}
}
