package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// shell starts a shell program whose lines come through the channel.
func shell(t *testing.T, c Command, script string) (*Process, <-chan string) {
	t.Helper()
	lines := make(chan string, 100)
	c.Args = []string{"/bin/sh", "-c", script}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	p, err := Start(c, func(line []byte) { lines <- string(line) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, lines
}

func TestLinesGoInAndOut(t *testing.T) {
	t.Parallel()
	p, lines := shell(t, Command{}, "exec cat")
	if err := p.Send(map[string]string{"text": "ä"}); err != nil {
		t.Fatal(err)
	}
	if got := <-lines; got != `{"text":"ä"}` {
		t.Errorf("line %q", got)
	}
	p.Close()
	p.Close() // a second Close does nothing
	if how := p.Crash(); how != "it ended" {
		t.Errorf("after the end of its input: %s", how)
	}
	if err := p.Send("x"); err == nil {
		t.Error("something was sent to a program that has ended")
	}
}

func TestWhatAProgramUnpacksGoesWithIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "for it")
	ended := false
	p, lines := shell(t, Command{Unpack: dir, Ended: func(int) { ended = true }}, `touch "$BUN_TMPDIR/library"; echo "$BUN_TMPDIR"; exec sleep 600`)
	other, others := shell(t, Command{Unpack: dir}, `echo "$BUN_TMPDIR"; exec sleep 600`)
	folder, another := <-lines, <-others
	if filepath.Dir(folder) != dir || filepath.Dir(another) != dir || folder == another {
		t.Errorf("the folders of two programs are %q and %q; want two in %q", folder, another, dir)
	}
	p.Kill()
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) || !ended {
		t.Errorf("after the end of the program: %v, Ended was called: %v", err, ended)
	}
	other.Kill()
	if _, err := Start(Command{Args: []string{"/missing"}, Unpack: dir}, nil); err == nil {
		t.Error("a program that is missing was started")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestLineOverTheLimitEndsTheProgramAndIsTheReason(t *testing.T) {
	t.Parallel()
	p, _ := shell(t, Command{MaxLine: 1000}, "echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; exec sleep 600")
	<-p.Done()
	if how := p.Crash(); !strings.Contains(how, "line 2 is longer than 1000 bytes") {
		t.Errorf("it ended: %s", how)
	}
}

func TestLinesOfStandardErrorAreHandedOverAndMayBeLeftOut(t *testing.T) {
	t.Parallel()
	var seen []string
	p, _ := shell(t, Command{Stderr: func(line []byte) bool {
		seen = append(seen, string(line))
		return !strings.HasPrefix(string(line), "noise")
	}}, "printf 'no' >&2; printf 'ise 1\\nwords\\nnoise 2\\nlast words' >&2; exit 4")
	<-p.Done()
	if how := p.Crash(); how != "it ended: exit status 4: words\nlast words" {
		t.Errorf("it ended: %s", how)
	}
	if want := []string{"noise 1", "words", "noise 2", "last words"}; !slices.Equal(seen, want) {
		t.Errorf("seen: %q", seen)
	}
}

func TestWhatAProgramPrintedLastIsReadByASlowReaderToo(t *testing.T) {
	t.Parallel()
	const lines = 600
	n := 0
	p, err := Start(Command{Args: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 600 ]; do i=$((i+1)); printf '%093d\n' $i; done"}}, func([]byte) {
		if n++; n == 1 {
			<-time.After(drainTime + drainTime/2) // longer than a silent pipe is read
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if n != lines {
		t.Errorf("%d lines of %d were read", n, lines)
	}
}

func TestStandardErrorIsReadByASlowReaderToo(t *testing.T) {
	t.Parallel()
	var seen []string
	p, _ := shell(t, Command{Stderr: func(line []byte) bool {
		if seen = append(seen, string(line)); len(seen) == 1 {
			<-time.After(drainTime + drainTime/2) // as above
		}
		return true
	}}, "i=0; while [ $i -lt 600 ]; do i=$((i+1)); printf '%093d\\n' $i >&2; done; exit 3")
	<-p.Done()
	if len(seen) != 600 {
		t.Errorf("%d lines of 600 were read", len(seen))
	}
	if how := p.Crash(); !strings.HasPrefix(how, "it ended: exit status 3") || !strings.HasSuffix(how, "0600") {
		t.Errorf("it ended: %.100s", how)
	}
}

func TestCloseKillsAProgramThatIgnoresEndOfInputAndTerm(t *testing.T) {
	t.Parallel()
	p, lines := shell(t, Command{}, "trap '' TERM INT HUP; sleep 600 & echo ready; while :; do sleep 1; done")
	<-lines
	p.Close()
	// Orphans stay in the group until the system has reaped them.
	tick, timeout := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for err := error(nil); !errors.Is(err, syscall.ESRCH); err = syscall.Kill(-p.PID(), 0) {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("its process group is still there: %v", err)
		}
	}
	if how := p.Crash(); !strings.Contains(how, "killed") {
		t.Errorf("it ended: %s", how)
	}
}

func TestOrphanThatHoldsTheOutputDoesNotBlockTheEnd(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Fatalf("install setsid (util-linux), which this test needs: %v", err)
	}
	// Wait until the child has left the group: before that, it would be killed with the program.
	apart := filepath.Join(t.TempDir(), "apart")
	p, lines := shell(t, Command{}, fmt.Sprintf(
		"setsid sh -c 'echo $$; : > %[1]s; exec sleep 600' & until [ -e %[1]s ]; do sleep 0.01; done; exit 3", apart))
	pid, err := strconv.Atoi(<-lines)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if how := p.Crash(); !strings.Contains(how, "exit status 3") {
		t.Errorf("it ended: %s", how)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the survivor: %v", err)
	}
}

func TestOrphanThatKeepsPrintingDoesNotBlockTheEnd(t *testing.T) {
	t.Parallel()
	for name, prints := range map[string]string{
		"a flood":           "while echo x; do :; done",
		"on standard error": "while echo x >&2; do :; done",
		"now and then":      "while echo x && echo x >&2; do sleep 1; done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			apart := filepath.Join(t.TempDir(), "apart") // as above
			script := fmt.Sprintf("setsid sh -c ': > %[1]s; %[2]s' & until [ -e %[1]s ]; do sleep 0.01; done; exit 3", apart, prints)
			p, err := Start(Command{Args: []string{"/bin/sh", "-c", script}, Env: os.Environ()}, func([]byte) {})
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done() // the survivor's pipe is broken now
			if how := p.Crash(); !strings.Contains(how, "exit status 3") {
				t.Errorf("it ended: %s", how)
			}
		})
	}
}

func TestEndIsToldWithTheProgramsID(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 1)
	p, lines := shell(t, Command{Ended: func(pid int) { ended <- pid }}, "sleep 600 & echo ready; wait")
	<-lines
	p.Kill()
	if pid := <-ended; pid != p.PID() {
		t.Errorf("told the end of %d, the program was %d", pid, p.PID())
	}
}

func TestProgramIsFoundAsTheAgentWouldFindIt(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"bin/tool", "other/tool"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("#!/bin/sh\necho tool 1.2.3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	here := filepath.Join(dir, "bin", "tool")
	tests := map[string]struct {
		argv []string
		path string
		want []string
	}{
		"by name":              {[]string{"tool", "x"}, "/nowhere:" + filepath.Dir(here), []string{here, "x"}},
		"by a relative path":   {[]string{"bin/tool"}, "", []string{here}},
		"not in relative ones": {[]string{"tool"}, "bin:.", nil},
		"not at all":           {[]string{"no-such-tool"}, filepath.Dir(here), nil},
	}
	for name, tt := range tests {
		got, err := Find(tt.argv, []string{"PATH=/first", "PATH=" + tt.path})
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if v, err := Version(t.Context(), []string{here}, nil); err != nil || v != "tool 1.2.3" {
		t.Errorf("version %q, %v", v, err)
	}
}

func TestVersionOfAProgramThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := Version(t.Context(), []string{"/bin/sh", "-c", "echo the reason >&2; exit 4"}, nil)
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("error %v", err)
	}
}

func TestEnvironmentIsTheRunnersWithTheAgentsOverIt(t *testing.T) {
	t.Setenv("OF_THE_SANDBOX", "kept")
	t.Setenv("OF_BOTH", "sandbox")
	env := Environ(map[string]string{"OF_BOTH": "driver", "OF_DRIVER": "1"}, map[string]string{"OF_BOTH": "agent"})
	for key, want := range map[string]string{"OF_THE_SANDBOX": "kept", "OF_BOTH": "agent", "OF_DRIVER": "1", "NOT_THERE": ""} {
		if got := Lookup(env, key); got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	if !slices.IsSorted(env) {
		t.Error("the variables are not in order")
	}
}

func TestCrashTellsTheEndOfStandardErrorAlone(t *testing.T) {
	t.Parallel()
	p, _ := shell(t, Command{}, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo \"line $i of much noise\" >&2; i=$((i+1)); done; echo 'the real reason' >&2; exit 3", 3000))
	<-p.Done()
	how := p.Crash()
	if !strings.Contains(how, "exit status 3") || !strings.HasSuffix(how, "the real reason") || len(how) > tailSize+100 {
		t.Errorf("%d bytes: %s", len(how), how)
	}
}

func TestVersionIsThatOfThePackageIfThereIsOne(t *testing.T) {
	dir := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "lib", "bin", "claude.exe")
	link := filepath.Join(dir, "claude")
	write(program, "")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	if v := PackagedVersion([]string{link}, "@anthropic-ai/claude-code"); v != "" {
		t.Errorf("without a package: %q", v)
	}
	file := filepath.Join(dir, "lib", "package.json")
	write(file, `{"name":"something-else","version":"1.0.0"}`)
	if v := PackagedVersion([]string{link}, "@anthropic-ai/claude-code"); v != "" {
		t.Errorf("in another package: %q", v)
	}
	write(file, `{"name":"@anthropic-ai/claude-code","version":"2.1.329"}`)
	if v := PackagedVersion([]string{link}, "@anthropic-ai/claude-code"); v != "2.1.329" {
		t.Errorf("it is %q", v)
	}
	deep := filepath.Join(dir, "lib", "vendor", "triple", "bin", "claude")
	write(deep, "")
	if v := PackagedVersion([]string{deep}, "@anthropic-ai/claude-code"); v != "2.1.329" {
		t.Errorf("three folders below its package it is %q", v)
	}
	if v := PackagedVersion([]string{link, "wrapped"}, "@anthropic-ai/claude-code"); v != "" {
		t.Errorf("of a program that starts another one: %q", v)
	}
}
