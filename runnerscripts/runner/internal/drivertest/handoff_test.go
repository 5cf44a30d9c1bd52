package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
	"github.com/agentenv-dev/agentenv/session"
)

// The prompts for the first agent, and the answers of the agent and its tools. The call does not
// contain the result.
const (
	firstPrompt  = "the secret word is plum: run-command `touch asked && printf tool-result-%d 42`"
	firstAnswer  = "The command has run."
	firstResult  = "tool-result-42"
	secondPrompt = "and then write-file `plum.txt`"
	secondAnswer = "The file is written."
)

func findDriver(name string) (agent.Driver, error) {
	for _, s := range subjects() {
		if s.name == name {
			return s.driver, nil
		}
	}
	return nil, fmt.Errorf("there is no agent %q", name)
}

// TestAnotherAgentContinues continues the conversation of each agent with the next agent, the last
// one's with the first. It checks what the second agent sends to its model. Package handoff tests the
// conversion, which is the same for all agents.
func TestAnotherAgentContinues(t *testing.T) {
	all := subjects()
	for i, from := range all {
		to := all[(i+1)%len(all)]
		t.Run(from.name+" to "+to.name, func(t *testing.T) {
			t.Parallel()
			continues(newRig(t, to), begin(newRig(t, from)))
		})
	}
}

// begin runs a conversation and returns its transcript.
func begin(r *rig) runnerscripts.Transcript {
	r.Helper()
	r.setUp()
	c := r.Start()
	for _, prompt := range []string{firstPrompt, secondPrompt} {
		if e := r.answer(c, prompt, runnerscripts.AllowOnce); e.err != nil {
			r.Fatal(e.err)
		}
	}
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	t, err := r.Driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.Session}, r.Out)
	if err != nil {
		r.Fatal(err)
	}
	t.Agent = r.name
	return t
}

func continues(r *rig, begun runnerscripts.Transcript) {
	r.Helper()
	r.real()
	want := runnerscripts.RestoredSummary
	if c, ok := r.Driver.(handoff.Converter); ok {
		want = c.Restores()
	}
	for range 2 { // a second setup must work, too
		data, err := handoff.SetUp(r.Context(), findDriver, runnerscripts.SetupRequest{Session: r.Session, Transcript: &begun})
		if err != nil || data.Restored != (runnerscripts.TranscriptRestored{From: begun.Agent, Way: want}) {
			r.Fatalf("set up: %+v, %v; want it %s", data, err, want)
		}
	}
	c := handoff.WithPreface(r.Start(), r.Session)
	if want == runnerscripts.RestoredSummary {
		// The summary is part of the user message, so the scripted model runs the command again.
		if e := r.answer(c, "remember", runnerscripts.AllowOnce); e.err != nil {
			r.Fatal(e.err)
		}
	} else {
		r.prompt(c, "remember")
	}
	last := r.lastRequest()
	for _, text := range []string{firstPrompt, firstAnswer, firstResult, secondPrompt, secondAnswer} {
		if !strings.Contains(unescaped(last.Body), text) {
			r.Errorf("the model was not sent %q", text)
		}
	}
	if texts := []string{firstPrompt, secondPrompt, "remember"}; want != runnerscripts.RestoredSummary && !slices.Equal(last.Texts, texts) {
		r.Errorf("the model was sent %q", last.Texts)
	}
	if init := r.initialized(); len(init) != 1 || init[0].Resumed != (want != runnerscripts.RestoredSummary) {
		r.Errorf("session_initialized: %+v", init)
	}
	r.prompt(c, "plain-text")
	once := firstAnswer
	if want == runnerscripts.RestoredSummary {
		once = "You continue a conversation that another agent has led"
	}
	if n := strings.Count(unescaped(r.lastRequest().Body), once); n != 1 {
		r.Errorf("the model was sent %q %d times", once, n)
	}
	if want != runnerscripts.RestoredSummary {
		r.keepsHistory(c)
	}
}

// keepsHistory fails unless the agent's own transcript contains the earlier conversation.
func (r *rig) keepsHistory(c agent.Conversation) {
	r.Helper()
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	stored := agenttest.NewRecorder()
	if _, err := r.Driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.Session, Events: true}, stored); err != nil {
		r.Fatal(err)
	}
	var kinds []string
	for _, b := range agenttest.Fold(r, stored.All()).Blocks {
		kinds = append(kinds, string(b.Kind))
		if b.Kind == session.BlockTool && b.Tool.Status != runnerscripts.ToolCompleted {
			r.Errorf("tool call: %s", agenttest.Show(r, b.Tool))
		}
	}
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "user agent tool agent user agent tool agent user agent user") {
		r.Errorf("blocks in the transcript: %s", got)
	}
}

// unescaped returns the body of a request, with the characters that JSON escapes restored.
func unescaped(body []byte) string {
	return strings.NewReplacer(`\u0026`, "&", `\"`, `"`).Replace(string(body))
}
