package script

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	sc, err := decodeScenario(raw)
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
	if sc, err = decodeScenario(raw); err == nil && sc.File != "" {
		err = errors.New(`it has "file" itself`)
	}
	if err != nil {
		return sc, invalid("correct the scenario in %s: %v", name, err)
	}
	return sc, nil
}

func decodeScenario(raw []byte) (runnerscripts.Scenario, error) {
	var sc runnerscripts.Scenario
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

func checkScenario(sc runnerscripts.Scenario) error {
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

func checkStep(s runnerscripts.ScenarioStep) error {
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
