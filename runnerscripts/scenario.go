package runnerscripts

import "encoding/json"

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
