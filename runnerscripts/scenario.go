package runnerscripts

import "encoding/json"

// Scenario is what the "script" agent plays: it needs no model and no network.
// It is Agent.Config of that agent, or a file of the same JSON named in its
// Config as {"file": "path in the sandbox"}.
//
// A prompt plays the turn whose When stands in it, else the next turn that has no
// When; after the last one it starts again.
type Scenario struct {
	Turns []ScenarioTurn `json:"turns"`
	File  string         `json:"file,omitempty"` // instead of Turns
}

// ScenarioTurn answers one prompt.
type ScenarioTurn struct {
	When  string         `json:"when,omitempty"`
	Steps []ScenarioStep `json:"steps"`
}

// ScenarioStep is one step of a turn; exactly one field is set. In every string
// {{prompt}} stands for the prompt.
type ScenarioStep struct {
	Text    string         `json:"text,omitempty"`    // said in several chunks
	Thought string         `json:"thought,omitempty"` // thought aloud
	Run     []string       `json:"run,omitempty"`     // a tool call that really runs this command in the workspace
	Write   *ScenarioWrite `json:"write,omitempty"`   // a tool call that really writes this file
	Ask     *ScenarioStep  `json:"ask,omitempty"`     // asks for permission, then does this Run or Write
	DelayMS int            `json:"delay_ms,omitempty"`
	Fail    *ScriptFailure `json:"fail,omitempty"`  // ends the query with this failure
	Crash   int            `json:"crash,omitempty"` // the runner exits with this code
	Plan    *Plan          `json:"plan,omitempty"`
	// Print writes a line to standard output as it is, to test readers.
	Print json.RawMessage `json:"print,omitempty"`
}

// ScenarioWrite is a file to write.
type ScenarioWrite struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}
