package proctree

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFindMarkTakesWholeKeysOnly(t *testing.T) {
	env := []byte("A=1\x00MARK=x=y\x00XMARK=z\x00NOVALUE\x00\x00")
	for _, tt := range []struct {
		keys  []string
		first string
		found bool
	}{
		{[]string{"MARK"}, "x=y", true},
		{[]string{"MARK", "A"}, "x=y", true},
		{[]string{"ARK"}, "", false},
		{[]string{"NOVALUE"}, "", false},
		{[]string{""}, "", false}, // the end of every environment looks like one
		{[]string{"", "A"}, "", false},
	} {
		values, found := findMark(env, tt.keys)
		if found != tt.found || values[0] != tt.first {
			t.Errorf("%q: %q, %v", tt.keys, values, found)
		}
	}
}

func TestParseStatTakesAnyName(t *testing.T) {
	line := "42 (a) (b c) S 1 2 3 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 777 1 1 1"
	p, err := parseStat([]byte(line))
	want := Proc{Identity: Identity{PID: 42, Start: 777}, PPID: 1, PGID: 2, SID: 3, Name: "a) (b c", hasMemory: true}
	if err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "42", "42 (a) S 1", "x (a) S 1 2 3 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 777 1"} {
		if p, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

// A command counts as started while its program is still being loaded: its environment appears a
// moment later.
func TestMarkIsFoundWhileTheProgramIsLoaded(t *testing.T) {
	for range 100 {
		cmd := exec.Command("/bin/sleep", "600")
		cmd.Env = []string{"SOME_MARK=x"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p, err := Stat(cmd.Process.Pid)
		values, found := Mark(p, "SOME_MARK")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil || !found || values[0] != "x" {
			t.Fatalf("the mark is %q, %v; %v", values, found, err)
		}
	}
}

func TestAnIdentitySurvivesItsText(t *testing.T) {
	self := Self()
	if got, err := ParseIdentity(self.String()); err != nil || got != self {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "1", "x.1", "1.-"} {
		if id, err := ParseIdentity(bad); err == nil {
			t.Errorf("%q: %+v", bad, id)
		}
	}
}

func TestSignalSparesWhoTookOverTheNumber(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	p, err := Stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// A former process with this PID has another start time.
	former := Identity{PID: p.PID, Start: p.Start - 1}
	if Alive(former) {
		t.Error("the former owner is taken for alive")
	}
	if err := Signal(former, unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to the former owner: %v", err)
	}
	if !Alive(p.Identity) {
		t.Fatal("the new owner was hit")
	}
	if err := Signal(p.Identity, unix.SIGKILL); err != nil {
		t.Errorf("signal: %v", err)
	}
	_ = cmd.Wait()
	if err := Signal(p.Identity, unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestDescendantsFollowsParentsFromTheRoots(t *testing.T) {
	proc := func(pid, ppid int) Proc { return Proc{Identity: Identity{PID: pid, Start: uint64(pid)}, PPID: ppid} }
	procs := []Proc{proc(4, 3), proc(1, 0), proc(2, 1), proc(3, 2), proc(9, 1)}
	found := Descendants(procs, func(p Proc) bool { return p.PID == 2 })
	if len(found) != 3 {
		t.Errorf("found %v", found)
	}
	for _, pid := range []int{2, 3, 4} {
		if _, ok := found[Identity{PID: pid, Start: uint64(pid)}]; !ok {
			t.Errorf("%d is missing", pid)
		}
	}
}
