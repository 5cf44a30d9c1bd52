// Package script is the driver of the scripted agent: it plays a
// [runnerscripts.Scenario], needs no model and no network, and really runs
// commands and writes files. It is there for demonstrations and tests, and shows
// the smallest complete driver.
//
// The agent's history is the JSON lines of its events, in the agent's HOME.
//
// The package of the same name below environment runs the runner scripts.
package script

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// agentVersion is the version of the script agent itself.
const agentVersion = "1"

// Config holds what the agent needs from the program that runs it.
type Config struct {
	// Print writes a line of a print step to standard output. Required.
	Print func(line []byte) error
}

// CrashError is the error of Prompt at a crash step: the program must exit with this status at
// once, without further output.
type CrashError int

// Error returns the status.
func (c CrashError) Error() string { return "crashed with status " + strconv.Itoa(int(c)) }

type driver struct{ cfg Config }

// New returns the driver.
func New(cfg Config) agent.Driver { return &driver{cfg: cfg} }

// Recipe returns a recipe that installs nothing.
func (d *driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent: "script", Version: agentVersion,
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureModel,
			runnerscripts.FeaturePermissionMode,
			runnerscripts.FeatureMaxTurns,
			runnerscripts.FeaturePermissions,
			runnerscripts.FeatureAllowAlways,
			runnerscripts.FeatureInterrupt,
			runnerscripts.FeatureSetMode,
			runnerscripts.FeatureSetModel,
			runnerscripts.FeatureResume,
			runnerscripts.FeatureThinking,
			runnerscripts.FeatureUsage,
			runnerscripts.FeatureCost,
			runnerscripts.FeatureImages,
			runnerscripts.FeaturePDF,
			runnerscripts.FeatureTextFiles,
		},
	}
}

// Setup checks the scenario and restores the history.
func (d *driver) Setup(_ context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if err := checkAgent(req.Agent); err != nil {
		return runnerscripts.SetupData{}, err
	}
	if _, err := loadScenario(req.Session); err != nil {
		return runnerscripts.SetupData{}, err
	}
	if t := req.Transcript; t != nil {
		if len(t.Subagents) > 0 {
			return runnerscripts.SetupData{}, unsupported("subagents in a transcript")
		}
		if err := restore(historyFile(req.Session), t.Main); err != nil {
			return runnerscripts.SetupData{}, err
		}
	}
	return runnerscripts.SetupData{AgentVersion: agentVersion}, nil
}

// Start starts or resumes a conversation.
func (d *driver) Start(_ context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := checkAgent(req.Agent); err != nil {
		return nil, err
	}
	scenario, err := loadScenario(req.Session)
	if err != nil {
		return nil, err
	}
	past, err := readHistory(historyFile(req.Session))
	if err != nil {
		return nil, err
	}
	hist, err := openHistory(historyFile(req.Session))
	if err != nil {
		return nil, err
	}
	c := newConversation(d.cfg, req, scenario, past, hist, out)
	out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
		Agent: req.Agent.Name, AgentVersion: agentVersion, Model: c.model, Mode: c.mode,
		Tools: []string{toolRun, toolWrite}, Resumed: len(past.prompts) > 0,
	})
	return c, nil
}

// Transcript returns the history unchanged, and emits its lines as events if req asks for them.
func (d *driver) Transcript(_ context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	past, err := readHistory(historyFile(req.Session))
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	if req.Events {
		emit(past, out)
	}
	return runnerscripts.Transcript{Main: past.text}, nil
}

// Replay emits the conversation of a transcript.
func (d *driver) Replay(_ context.Context, _ runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	past, err := parseHistory(t.Main)
	if err != nil {
		return err
	}
	emit(past, out)
	return nil
}

func emit(p past, out agent.Sink) {
	for _, ev := range p.events {
		out.EmitAt(ev.Time, ev.ConversationID, ev.Type, ev.Payload)
	}
}

func checkAgent(a runnerscripts.Agent) error {
	if len(a.Command) > 0 {
		return unsupported("command, it has no program of its own")
	}
	return checkMode(a.PermissionMode)
}

// The permission modes. An empty one is modeDefault.
const (
	modeDefault     = "default"           // ask steps ask
	modeAcceptEdits = "acceptEdits"       // ask steps with a run ask
	modeBypass      = "bypassPermissions" // nothing asks
)

func checkMode(mode string) error {
	switch mode {
	case "", modeDefault, modeAcceptEdits, modeBypass:
		return nil
	}
	return unsupported(fmt.Sprintf("permission mode %q; choose %s, %s or %s", mode, modeDefault, modeAcceptEdits, modeBypass))
}

func unsupported(what string) error {
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailUnsupported, Message: "the script agent does not support " + what,
	}
}

func invalid(format string, args ...any) error {
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailInvalidRequest, Message: fmt.Sprintf(format, args...),
	}
}

// errInterrupted ends a turn that was interrupted.
var errInterrupted = errors.New("interrupted")
