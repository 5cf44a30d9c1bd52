package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// piped starts envctl on a terminal, with a pipe as standard output.
func piped(t *testing.T, args ...string) (s *screen, out *os.File) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	s = startOnTerminalWith(t, w, 100, args...)
	w.Close()
	return s, out
}

// The user can answer a question on the terminal while no program reads the agent's text from
// the pipe. All of the text arrives.
func TestAQuestionDoesNotWaitForTheReaderOfAPipe(t *testing.T) {
	said := strings.Repeat("0123456789abcdef\n", 1<<13) // more than a pipe holds
	scenario := file(t, "ask.json", fmt.Sprintf(
		`{"turns":[{"steps":[{"text":%q},{"ask":{"write":{"path":"asked.txt","content":"x"}}},{"text":"over"}]}]}`, said))
	for name, flags := range map[string][]string{"text": nil, "json": {"--json"}} {
		t.Run(name, func(t *testing.T) {
			patch := filepath.Join(t.TempDir(), "patch")
			s, out := piped(t, append([]string{"run", "--scenario", scenario, "--patch", patch, "go"}, flags...)...)
			s.wait("Allow?")
			s.wait("instead: ")
			s.typeIn("y\r")
			s.wait("the patch was written")
			text, err := io.ReadAll(out)
			if err != nil {
				t.Fatal(err)
			}
			if code := s.end(); code != exitOK {
				t.Errorf("exit status %d:\n%s", code, s.seen.String())
			}
			if got := strings.Count(string(text), "0123456789abcdef"); got != 1<<13 || !strings.Contains(string(text), "over") {
				t.Errorf("%d of %d lines have arrived, and the end: %v", got, 1<<13, strings.Contains(string(text), "over"))
			}
		})
	}
}

// After a second interrupt envctl ends, although no program reads its output.
func TestASecondInterruptDoesNotWaitForTheReaderOfAPipe(t *testing.T) {
	said := strings.Repeat("0123456789abcdef\n", 1<<13)
	scenario := file(t, "long.json", fmt.Sprintf(`{"turns":[{"steps":[{"text":%q},{"ask":{"write":{"path":"asked.txt","content":"x"}}}]}]}`, said))
	s, _ := piped(t, "run", "--scenario", scenario, "go")
	s.wait("instead: ")
	s.typeIn("\x03")
	s.wait("interrupting")
	s.typeIn("\x03")
	if code := s.end(); code != exitInterrupted {
		t.Errorf("exit status %d:\n%s", code, s.seen.String())
	}
}
