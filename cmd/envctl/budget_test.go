package main

import (
	"path/filepath"
	"testing"
)

// A user at the terminal can raise a budget that is used up, or stop the query.
func TestABudgetIsAskedForOnATerminal(t *testing.T) {
	executor, err := filepath.Abs("../../environment/testdata/executor.mjs") // calls the model twice
	if err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]struct {
		code  int
		shows string
	}{
		"y": {exitOK, "The file is written."},
		"n": {exitFailure, "budget of 1 request is used up"},
	} {
		t.Run(answer, func(t *testing.T) {
			s := startOnTerminal(t, "run", "-c", configFile(t, map[string]any{
				"sandbox":     "local",
				"agent":       map[string]any{"name": "command", "command": []string{"node", executor}},
				"credentials": map[string]any{"anthropic": map[string]any{"file": file(t, "key", "test-key"), "url": startedModel(t, "").URL}},
			}), "--budget", "1requests", "please write-file `notes.txt`")
			s.wait("The session's budget of 1 request is used up")
			s.wait("instead: ")
			s.typeIn(answer + "\r")
			s.wait(want.shows)
			if code := s.end(); code != want.code {
				t.Errorf("exit status %d:\n%s", code, &s.seen)
			}
		})
	}
}
