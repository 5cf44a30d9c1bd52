package script

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

//go:embed scenario.json
var demo []byte

// loadScenario returns the scenario of a session: the one in Agent.Config, the
// file named there, or the demonstration.
func loadScenario(s runnerscripts.Session) (runnerscripts.Scenario, error) {
	raw := bytes.TrimSpace(s.Agent.Config)
	if len(raw) == 0 || string(raw) == "null" || string(raw) == "{}" {
		raw = demo
	}
	sc, err := runnerscripts.ParseScenario(raw)
	if err != nil {
		return sc, invalid("correct the scenario in the agent's config: %v", err)
	}
	if sc.File == "" {
		return sc, nil
	}
	name := sc.File
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.Paths.Workspace, name)
	}
	if raw, err = os.ReadFile(name); err != nil {
		return sc, invalid("put the scenario where the agent's config says: %v", err)
	}
	if sc, err = runnerscripts.ParseScenario(raw); err == nil && sc.File != "" {
		err = errors.New(`it has "file" itself`)
	}
	if err != nil {
		return sc, invalid("correct the scenario in %s: %v", name, err)
	}
	return sc, nil
}

// turnsFor returns the turn that answers each of the prompts of a conversation.
func turnsFor(sc runnerscripts.Scenario, prompts []string) []runnerscripts.ScenarioTurn {
	var plain []runnerscripts.ScenarioTurn
	for _, t := range sc.Turns {
		if t.When == "" {
			plain = append(plain, t)
		}
	}
	turns := make([]runnerscripts.ScenarioTurn, len(prompts))
	used := 0
	for i, p := range prompts {
		if t, ok := turnWhen(sc, p); ok {
			turns[i] = t
		} else if len(plain) > 0 {
			turns[i] = plain[used%len(plain)]
			used++
		}
	}
	return turns
}

func turnWhen(sc runnerscripts.Scenario, prompt string) (runnerscripts.ScenarioTurn, bool) {
	for _, t := range sc.Turns {
		if t.When != "" && strings.Contains(prompt, t.When) {
			return t, true
		}
	}
	return runnerscripts.ScenarioTurn{}, false
}

// placeholders returns the replacements for the strings of a turn.
func (c *conversation) placeholders(prompts []string, attachments []runnerscripts.Attachment) *strings.Replacer {
	last := len(prompts) - 1
	var attached []string
	for _, a := range attachments {
		attached = append(attached, fmt.Sprintf("%s %s %x", a.Name, a.MediaType, sha256.Sum256(a.Data)))
	}
	return strings.NewReplacer(
		"{{prompt}}", prompts[last],
		"{{turn}}", strconv.Itoa(len(prompts)),
		"{{history}}", strings.Join(prompts[:last], "\n"),
		"{{model}}", c.model,
		"{{system_prompt}}", c.systemPrompt,
		"{{attachments}}", strings.Join(attached, "\n"),
	)
}
