package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/agentenv-dev/agentenv/internal/visible"
)

// hostile is output with which a sandbox tries to take over the terminal: a clipboard, a clear
// screen in both notations, an overwritten line, reversed and invisible text, invalid UTF-8. It
// is also used as a file name.
const hostile = "\x1b]52;c;aGk=\x07\x1b[2J\u009b2Jgood\rbad\x7f\b\u202e\u2066\u200b\u2028\U000e0041\xff"

// hostileJSON returns hostile as a JSON string, without the invalid UTF-8 and with a fake
// question.
func hostileJSON() string {
	b, err := json.Marshal(strings.TrimSuffix(hostile, "\xff") + "\nAllow? harmless\n")
	if err != nil {
		panic(err)
	}
	return string(b)
}

// hostileEvents returns events with hostile text in every field that may hold text.
func hostileEvents(conversation string) string {
	var b strings.Builder
	add := func(typ, payload string) {
		fmt.Fprintf(&b, `{"type":%q,"conversation_id":%q,"payload":%s}`+"\n", typ, conversation, strings.ReplaceAll(payload, "H", hostileJSON()))
	}
	add("user_message_chunk", `{"content":{"type":"text","text":H}}`)
	add("agent_message_chunk", `{"blockId":"1","content":{"type":"text","text":H}}`)
	add("agent_thought_chunk", `{"blockId":"2","content":{"type":"text","text":H}}`)
	for i, status := range []string{"completed", "failed"} {
		add("tool_call", fmt.Sprintf(`{"toolCallId":"%d","title":H,"name":H,"kind":H,"status":"pending","rawInput":{"command":H}}`, i))
		add("tool_call_update", fmt.Sprintf(`{"toolCallId":"%d","title":H,"status":%q,"content":[
			{"type":"content","content":{"type":"text","text":H}},{"type":"diff","path":H,"oldText":H,"newText":H}]}`, i, status))
	}
	add("tool_call", `{"toolCallId":"n","name":H,"status":H}`)
	add("plan", `{"entries":[{"content":H,"priority":H,"status":H}]}`)
	add("permission_request", `{"id":"p","toolCall":{"toolCallId":"0","title":H},"options":[{"optionId":H,"name":H,"kind":H}]}`)
	add("permission_resolved", `{"id":"p","kind":"reject_once","reason":H}`)
	add("log", `{"level":"warn","message":H}`)
	add("log", `{"level":H,"message":H}`)
	add("error", `{"code":H,"message":H}`)
	add("usage_update", `{"used":1,"size":2}`)
	return strings.ReplaceAll(b.String(), "\n\t\t\t", "")
}

// startHere runs this test's binary as envctl on a terminal, with the test's variables.
func startHere(t *testing.T, env []string, args ...string) *screen {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = append([]string{"envctl"}, args...)
	cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "GORACE=atexit_sleep_ms=0"}, env...)...)
	p, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	s := &screen{t: t, pty: p, cmd: cmd, news: make(chan []byte)}
	go s.read()
	return s
}

// ownStyle are the escape sequences that envctl prints itself.
var ownStyle = regexp.MustCompile("\x1b\\[(1|2|31|32|36)m|\x1b\\[0m")

// harmless fails the test if a harmful byte has reached the terminal. The terminal adds a
// carriage return to each line break.
func harmless(t *testing.T, name string, screen []byte) {
	t.Helper()
	text := string(bytes.ReplaceAll(ownStyle.ReplaceAll(screen, nil), []byte("\r\n"), []byte("\n")))
	if text != visible.Text(text) {
		t.Errorf("%s: something harmful arrives:\n%q", name, text)
	}
	// The hostile text must be visible: as <U+202E>, quoted by Go, or cut in a table cell.
	if !strings.Contains(text, "<U+202E>") && !strings.Contains(text, `\u202e`) && !strings.Contains(text, "<U+009B>2Jgoo…") {
		t.Errorf("%s: it is not shown that there is something:\n%q", name, text)
	}
}

// TestNothingOfASandboxReachesTheTerminal runs, on a terminal, every command that prints data of
// a sandbox.
func TestNothingOfASandboxReachesTheTerminal(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	printed := write("hostile", hostile)
	turn := strings.ReplaceAll(`{"type":"query_started"}`+"\n"+hostileEvents("main")+hostileEvents("sub")+
		`{"type":"query_completed","payload":{"stop_reason":H,"duration_ms":1}}`+"\n", "H", hostileJSON())
	events, told := write("events", turn), write("told", turn+`{"type":"result","ok":true}`+"\n")
	failing := write("failing", strings.ReplaceAll(`{"type":"query_started"}
{"type":"query_failed","payload":{"code":H,"message":H}}
`, "H", hostileJSON()))
	// The scripts print the files unchanged.
	config := write("hostile.yaml", fmt.Sprintf(`
sandbox: local
scripts:
  setup_session: [sh, -c, 'cat >/dev/null; echo "{\"type\":\"result\",\"ok\":true}"']
  execute_query: [sh, -c, 'cat %s %s >&2; cat %s']
  read_transcript: [sh, -c, 'cat >/dev/null; cat %s']
`, printed, printed, events, told))
	broken := write("broken.yaml", fmt.Sprintf("sandbox: local\nscripts: {setup_session: [sh, -c, 'cat %s >&2; exit 1']}\n", printed))
	fails := write("fails.yaml", fmt.Sprintf(`
sandbox: local
scripts:
  setup_session: [sh, -c, 'cat >/dev/null; echo "{\"type\":\"result\",\"ok\":true}"']
  execute_query: [sh, -c, 'cat %s']
`, failing))
	programs := t.TempDir()
	for _, name := range []string{"git", "claude"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\ncat "+printed), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := "PATH=" + programs + ":" + os.Getenv("PATH")

	s := startHere(t, nil, "run", "-v", "--keep", "-c", config, "-p", "deny", hostile[:len(hostile)-1])
	s.end()
	harmless(t, "run", s.seen.Bytes())
	var list, errOut bytes.Buffer
	if code := Execute(t.Context(), nil, &list, &errOut, []string{"ls", "--sandbox", "local", "--json"}); code != exitOK {
		t.Fatalf("ls: %d\n%s", code, &errOut)
	}
	var box struct{ ID string }
	if err := json.Unmarshal(list.Bytes(), &box); err != nil {
		t.Fatal(err)
	}
	inside := func(script string) {
		t.Helper()
		if code := Execute(t.Context(), strings.NewReader(""), &list, &errOut, []string{"exec", box.ID, "--", "sh", "-c", script, "sh", hostile, printed}); code != exitOK {
			t.Errorf("exec: %d\n%s", code, &errOut)
		}
	}
	inside(`cp "$2" "$1" && ln -s "$1" link && cp "$2" file`)
	kept := func(flags ...string) string {
		t.Helper()
		s := startHere(t, nil, append(append([]string{"run", "--keep"}, flags...), "go")...)
		s.end()
		_, after, _ := strings.Cut(s.seen.String(), "end it with 'envctl rm ")
		id, _, ok := strings.Cut(after, "'")
		if !ok {
			t.Fatalf("nothing is kept:\n%s", &s.seen)
		}
		harmless(t, "run --keep", s.seen.Bytes())
		return id
	}
	commanded := kept("-c", write("command.yaml", fmt.Sprintf("sandbox: local\nagent: {name: command, config: {type: hostile, command: [sh, -c, 'cat %[2]s; cat %[1]s; cat %[1]s >&2; cat %[3]s']}}\n",
		printed, write("agent", hostileEvents("main")), write("turn", `{"type":"turn_complete","result":`+hostileJSON()+"}\n"))))
	for name, args := range map[string][]string{
		"run that fails":     {"run", "-c", fails, "go"},
		"run not prepared":   {"run", "-v", "-c", broken, "go"},
		"attach":             {"attach", commanded},
		"attach, JSON":       {"attach", "--json", commanded},
		"transcript":         {"transcript", "-c", config, box.ID},
		"transcript, JSON":   {"transcript", "-c", config, "--json", box.ID},
		"logs":               {"logs", commanded},
		"logs, JSON":         {"logs", "--json", commanded},
		"diff":               {"diff", box.ID},
		"diff, paths":        {"diff", "--stat", box.ID},
		"diff, JSON":         {"diff", "--json", box.ID},
		"ls":                 {"ls", box.ID},
		"ls, JSON":           {"ls", "--json", box.ID},
		"ls of nothing":      {"ls", box.ID + ":\u202e"},
		"cp":                 {"cp", box.ID + ":file", "-"},
		"cp, an error":       {"cp", box.ID + ":" + hostile[:len(hostile)-1] + "/no", "-"},
		"exec, an error":     {"exec", box.ID, "--", "./" + hostile[:len(hostile)-1] + "no"},
		"agents":             {"agents", box.ID},
		"doctor":             {"doctor", "--sandbox", "local"},
		"no such command":    {hostile[:len(hostile)-1]},
		"no such flag":       {"ls", "--\x1b[2J\u202e"},
		"no such sandbox":    {"rm", hostile[:len(hostile)-1]},
		"colors, transcript": {"transcript", "-c", config, box.ID},
	} {
		env := []string{path, "NO_COLOR=1"}
		if strings.HasPrefix(name, "colors") {
			env = []string{path}
		}
		s := startHere(t, env, args...)
		s.end()
		harmless(t, name, s.seen.Bytes())
		if strings.HasPrefix(name, "colors") && !ownStyle.Match(s.seen.Bytes()) {
			t.Errorf("%s: there is none:\n%q", name, &s.seen)
		}
	}
	w := startHere(t, nil, "watch", "-n", "3", box.ID)
	w.wait("watching")
	inside(`mv "$1" "$1.moved" && cp "$2" "$1.new" && rm "$1.moved"`)
	w.end()
	harmless(t, "watch", w.seen.Bytes())
	inside(`rm -f "$1"* link file`)
	if code := Execute(t.Context(), nil, &list, &errOut, []string{"rm", box.ID, commanded}); code != exitOK {
		t.Errorf("rm: %d\n%s", code, &errOut)
	}
}

// A pipe gets every byte unchanged.
func TestAPipeGetsEveryByte(t *testing.T) {
	alone(t)
	printed := file(t, "hostile", hostile)
	var out, errOut bytes.Buffer
	if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, []string{"exec", "--", "cat", printed}); code != exitOK || out.String() != hostile {
		t.Errorf("exec: %d, %q\n%s", code, &out, &errOut)
	}
	var id bytes.Buffer
	if code := Execute(t.Context(), nil, &id, &errOut, []string{"create"}); code != exitOK {
		t.Fatalf("create: %d\n%s", code, &errOut)
	}
	box := strings.TrimSpace(id.String())
	for _, args := range [][]string{{"cp", printed, box + ":file"}, {"cp", box + ":file", "-"}, {"rm", box}} {
		out.Reset()
		if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, args); code != exitOK || args[len(args)-1] == "-" && out.String() != hostile {
			t.Errorf("%q: %d, %q\n%s", args, code, &out, &errOut)
		}
	}
}

// On a terminal, too, exec prints the output of the command unchanged.
func TestExecIsNotFiltered(t *testing.T) {
	s := startOnTerminal(t, "exec", "--", "printf", `a\033[7mb`)
	if code := s.end(); code != exitOK || !strings.Contains(s.seen.String(), "a\x1b[7mb") {
		t.Errorf("exit status %d: %q", code, &s.seen)
	}
}

// Regression test: ls hung on a named pipe in a folder of another user, and showed that user's
// sandboxes.
func TestLsOfAFolderThatAnotherUserHasMadeSaysSo(t *testing.T) {
	alone(t)
	cache, err := os.MkdirTemp("", "agentenv-test-cache-") //nolint:usetesting // t.TempDir lets no other user in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(cache) })
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sh", "-ec", `cd "$1"; mkdir -p agentenv/local/abcdefghijklmnop/app; mkfifo agentenv/local/abcdefghijklmnop/app/sandbox.json`, "sh", cache)
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := other.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, args := range [][]string{{"ls"}, {"gc"}, {"stats"}, {"exec", "abcdefghijklmnop", "--", "true"}, {"rm", "abcdefghijklmnop"}, {"create"}} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, append([]string{args[0], "--sandbox", "local"}, args[1:]...))
		if s := errOut.String(); code == exitOK || !strings.Contains(s, "it belongs to another user; remove it, or set root to another folder") {
			t.Errorf("%q: exit status %d\n%s", args, code, s)
		}
		if strings.Contains(out.String(), "abcdefghijklmnop") {
			t.Errorf("%q shows what is there:\n%s", args, &out)
		}
	}
}
