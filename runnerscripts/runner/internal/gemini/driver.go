package gemini

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// Driver drives the Gemini CLI. The zero value is ready to use.
type Driver struct {
	patience time.Duration // how long the program may take to start; zero means that of package acp
	silence  time.Duration // how long it may say nothing; zero means that of package acp
}

var _ agent.Driver = Driver{}

// check refuses what this driver cannot do, instead of ignoring it.
func check(s runnerscripts.Session) error {
	a := s.Agent
	if len(a.Config) > 0 && string(a.Config) != "null" && string(a.Config) != "{}" {
		return agent.Invalid("leave agent.config out: the agent %q has none", programName)
	}
	if a.MaxTurns != 0 {
		return agent.Unsupported("leave agent.max_turns out: Gemini CLI limits the turns of a session, not those of a query")
	}
	if _, ok := a.Env["GEMINI_CLI_HOME"]; ok {
		return agent.Invalid("leave GEMINI_CLI_HOME out of agent.env: the session's transcript is kept there")
	}
	if !agent.IsUUID(s.SessionID) {
		return agent.Invalid("give session_id as a UUID, not %q", s.SessionID)
	}
	return nil
}

// Setup restores the transcript and writes the program's settings.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if err := check(req.Session); err != nil {
		return runnerscripts.SetupData{}, err
	}
	env := environment(req.Session)
	argv, err := program(req.Agent, env)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	v, err := child.Version(ctx, argv, env)
	if err != nil {
		return runnerscripts.SetupData{}, agent.Failed("check that the program in agent.command is the Gemini CLI for this platform: %v", err)
	}
	data := runnerscripts.SetupData{AgentVersion: v}
	if err := writeSettings(req.Session); err != nil {
		return data, err
	}
	if req.Transcript == nil {
		return data, nil
	}
	return data, restore(req.Session, *req.Transcript)
}

// Start starts the program; a session that has a transcript goes on.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := check(req.Session); err != nil {
		return nil, err
	}
	workspace, err := realWorkspace(req.Session)
	if err != nil {
		return nil, err
	}
	live := &live{session: req.Session, workspace: workspace, out: out}
	cfg := acp.Config{
		Query: req, Out: out, Program: "Gemini CLI", Workspace: workspace,
		Launch: func(model string) (child.Command, error) {
			cmd, err := launch(req.Session, workspace, model)
			cmd.Stderr = &retryWatch{out: out}
			return cmd, err
		},
		ModelAtLaunch: true,
		History:       live.history,
		Began:         live.began,
		Translate:     translateUpdate,
		Usage:         live.usage,
		Ended:         live.ended,
		Forgets:       true,
		WholeThoughts: true,
		Failure:       failure,
		StartTime:     d.patience,
		Silence:       d.silence,
	}
	if !req.Agent.TrustWorkspace {
		cfg.Modes = map[string]string{modeAutoEdit: modeDefault, modeYOLO: modeDefault}
		cfg.Allows = allows
	}
	return acp.Start(ctx, cfg)
}

// Transcript reads the session's history.
func (Driver) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	if err := check(req.Session); err != nil {
		return runnerscripts.Transcript{}, err
	}
	t, err := readTranscript(req.Session)
	if err != nil || !req.Events {
		return t, err
	}
	workspace, err := realWorkspace(req.Session)
	if err != nil {
		return t, err
	}
	return t, replay(ctx, t.Main, workspace, out)
}

// The permission modes of the program.
const (
	modeDefault  = "default"
	modeAutoEdit = "autoEdit"
	modeYOLO     = "yolo"
	modePlan     = "plan"
)

// allows says what the modes that the driver keeps allow without asking.
func allows(mode string, call runnerscripts.ToolCall) bool {
	return mode == modeYOLO || mode == modeAutoEdit && call.Kind == runnerscripts.ToolEdit
}
