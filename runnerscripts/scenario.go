package runnerscripts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Scenario is what the "script" agent plays: it needs no model and no network.
// It is Agent.Config of that agent, or a file of the same JSON named in its
// Config as {"file": "path in the sandbox"}. Without a Config the agent plays a
// scenario of its own.
//
// A prompt plays the first turn whose When is part of the prompt, else the next turn without a
// When. After the last turn the scenario starts again.
type Scenario struct {
	Turns []ScenarioTurn `json:"turns,omitempty"`
	// File is the path of a file that holds the scenario, instead of Turns. A relative path is
	// relative to the workspace.
	File string `json:"file,omitempty"`
}

// ScenarioTurn answers one prompt.
type ScenarioTurn struct {
	When  string         `json:"when,omitempty"`
	Steps []ScenarioStep `json:"steps"`
}

// ScenarioStep is one step of a turn; exactly one field is set. In every string of Text, Thought,
// Run, Write and Plan these placeholders are replaced:
//
//	{{prompt}}         the prompt
//	{{turn}}           how many prompts the conversation has had, this one included
//	{{history}}        the earlier prompts, one a line
//	{{model}}          Agent.Model, or the value of the last set_model
//	{{system_prompt}}  Agent.SystemPrompt
//	{{attachments}}    name, media type and SHA-256 of each attachment of the prompt, one a line
type ScenarioStep struct {
	Text    string         `json:"text,omitempty"`     // a message, sent in several chunks
	Thought string         `json:"thought,omitempty"`  // a thought of the agent
	Run     []string       `json:"run,omitempty"`      // a tool call that really runs this command in the workspace
	Write   *ScenarioWrite `json:"write,omitempty"`    // a tool call that really writes this file
	Ask     *ScenarioStep  `json:"ask,omitempty"`      // asks for permission, then does this Run or Write
	DelayMS int            `json:"delay_ms,omitempty"` // waits; an interrupt ends it
	Fail    *ScriptFailure `json:"fail,omitempty"`     // ends the query with this failure
	Crash   int            `json:"crash,omitempty"`    // the runner exits with this code, at once
	Plan    *Plan          `json:"plan,omitempty"`
	// Print writes a line to standard output unchanged, to test readers. For a JSON string it
	// writes the text, which need not be JSON.
	Print json.RawMessage `json:"print,omitempty"`
}

// ScenarioWrite is a file to write.
type ScenarioWrite struct {
	Path    string `json:"path"` // in the workspace
	Content string `json:"content"`
}

// ParseScenario reads a scenario and checks that each of its steps can be played. An error names the turn and the step.
func ParseScenario(raw []byte) (Scenario, error) {
	var sc Scenario
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&sc); err != nil {
		return sc, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return sc, errors.New("there is more than one JSON value")
	}
	return sc, checkScenario(sc)
}

func checkScenario(sc Scenario) error {
	if (sc.File == "") == (len(sc.Turns) == 0) {
		return errors.New(`it needs either "turns" or "file"`)
	}
	for i, t := range sc.Turns {
		for j, s := range t.Steps {
			if err := checkStep(s); err != nil {
				return fmt.Errorf("turn %d, step %d: %w", i+1, j+1, err)
			}
		}
	}
	return nil
}

func checkStep(s ScenarioStep) error {
	set := 0
	for _, is := range []bool{
		s.Text != "", s.Thought != "", len(s.Run) > 0, s.Write != nil, s.Ask != nil,
		s.DelayMS != 0, s.Fail != nil, s.Crash != 0, s.Plan != nil, len(s.Print) > 0,
	} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf("exactly one field must be set, not %d", set)
	case s.DelayMS < 0:
		return errors.New(`"delay_ms" is negative`)
	case s.Crash < 0 || s.Crash > 255:
		return errors.New(`"crash" must be from 1 to 255`)
	case s.Write != nil && s.Write.Path == "":
		return errors.New(`"write" has no "path"`)
	case s.Fail != nil && s.Fail.Code == "":
		return errors.New(`"fail" has no "code"`)
	case s.Ask != nil && len(s.Ask.Run) == 0 && s.Ask.Write == nil:
		return errors.New(`"ask" needs a "run" or a "write"`)
	case s.Ask != nil:
		return checkStep(*s.Ask)
	}
	return nil
}
