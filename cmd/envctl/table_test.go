package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// narrow runs envctl on a terminal of 80 columns and returns its lines.
func narrow(t *testing.T, args ...string) []string {
	t.Helper()
	s := startOnTerminalWith(t, nil, 80, args...)
	if code := s.end(); code != exitOK {
		t.Errorf("%q: exit status %d\n%s", args, code, &s.seen)
	}
	return strings.Split(strings.ReplaceAll(s.seen.String(), "\r\n", "\n"), "\n")
}

func TestTablesFitTheTerminal(t *testing.T) {
	for _, command := range []string{"agents", "doctor"} {
		for _, line := range narrow(t, command) {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("%s: a line has %d characters: %q", command, n, line)
			}
		}
	}
}

func TestARowOfATableIsCutOrContinued(t *testing.T) {
	for _, c := range []struct {
		width int
		row   []string
		want  string
	}{
		{40, []string{"a", "b"}, "a  b\n"},
		{40, []string{"name", "one two three four five six seven eight nine ten"}, "name  one two three four five six seven\n      eight nine ten\n"},
		{40, []string{"name", strings.Repeat("x", 50)}, "name  " + strings.Repeat("x", 34) + "\n      " + strings.Repeat("x", 16) + "\n"},
		{30, []string{strings.Repeat("i", 30), "short", "end"}, strings.Repeat("i", 17) + "…  short  end\n"},
	} {
		var row []term.Span
		for _, cell := range c.row {
			row = append(row, term.Plain(cell))
		}
		var widths []int
		for _, cell := range row {
			widths = append(widths, utf8.RuneCountInString(cell.Text))
		}
		widths = term.Fit(widths, c.width)
		var got strings.Builder
		for more := row; more != nil; {
			var line []term.Span
			line, more = term.TableLine(more, widths)
			for _, s := range line {
				got.WriteString(s.Text)
			}
			got.WriteString("\n")
		}
		if got.String() != c.want {
			t.Errorf("in %d columns:\n%swant\n%s", c.width, got.String(), c.want)
		}
	}
}

func TestStatsLeavesOutWhatHasEndedMeanwhile(t *testing.T) {
	alone(t)
	var id, errOut bytes.Buffer
	if code := Execute(t.Context(), nil, &id, &errOut, []string{"create"}); code != exitOK {
		t.Fatalf("exit status %d\n%s", code, &errOut)
	}
	lives := usage{ID: strings.TrimSpace(id.String()), Type: "local", Status: primitives.StatusRunning}
	gone := usage{ID: "gone", Type: "local", Status: primitives.StatusRunning}
	left, failed := withoutEnded(t.Context(), environment.Sandbox{Type: "local"}, []usage{gone, lives}, []error{io.EOF, nil})
	if len(left) != 1 || left[0].ID != lives.ID || errors.Join(failed...) != nil {
		t.Errorf("left %v, %v", left, failed)
	}
	// A running sandbox that does not answer is a failure.
	_, failed = withoutEnded(t.Context(), environment.Sandbox{Type: "local"}, []usage{lives}, []error{io.EOF})
	if !errors.Is(errors.Join(failed...), io.EOF) {
		t.Errorf("failed with %v", failed)
	}
	if code := Execute(t.Context(), nil, io.Discard, &errOut, []string{"rm", lives.ID}); code != exitOK {
		t.Errorf("exit status %d\n%s", code, &errOut)
	}
}
