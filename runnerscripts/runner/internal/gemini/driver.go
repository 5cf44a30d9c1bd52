package gemini

import (
	"context"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// Driver drives the Gemini CLI. The zero value is ready to use.
type Driver struct {
	patience time.Duration // limits the start of the program; zero means the default of acp
	silence  time.Duration // limits its time without output; zero means the default of acp
}

var _ agent.Driver = Driver{}

// check returns an error for unsupported settings instead of ignoring them.
func check(s runnerscripts.Session) error {
	a := s.Agent
	if len(a.Config) > 0 && string(a.Config) != "null" && string(a.Config) != "{}" {
		return agent.Invalid("leave agent.config out: the agent %q has none", programName)
	}
	if a.MaxTurns != 0 {
		return agent.Unsupported("leave agent.max_turns out: Gemini CLI limits the turns of a session, not those of a query")
	}
	if a.AllowOutside {
		return agent.Unsupported("leave agent.allow_outside out: Gemini CLI itself keeps its tools in the workspace")
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
	if err := checkProfile(req.Session, req.Profile); err != nil {
		return runnerscripts.SetupData{}, err
	}
	env := environment(req.Session, trusts(req.Session, req.Profile))
	argv, err := program(req.Agent, env)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	v := child.PackagedVersion(argv, npmPackage)
	if v == "" {
		if v, err = child.Version(ctx, argv, env); err != nil {
			return runnerscripts.SetupData{}, agent.Failed("check that the program in agent.command is the Gemini CLI for this platform: %v", err)
		}
	}
	data := runnerscripts.SetupData{AgentVersion: v}
	if err := writeFiles(req.Session, req.Profile); err != nil {
		return data, err
	}
	if err := agent.InstallServers(ctx, req.Session, req.Profile, env); err != nil {
		return data, err
	}
	if req.Transcript == nil {
		return data, nil
	}
	return data, restore(req.Session, *req.Transcript)
}

// Start starts the program. It resumes a session that has a transcript.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := check(req.Session); err != nil {
		return nil, err
	}
	if err := checkProfile(req.Session, req.Profile); err != nil {
		return nil, err
	}
	workspace, err := realWorkspace(req.Session)
	if err != nil {
		return nil, err
	}
	servers, err := mcpServers(req)
	if err != nil {
		return nil, err
	}
	live := &live{session: req.Session, workspace: workspace, out: out}
	cfg := acp.Config{
		Query: req, Out: out, Program: "Gemini CLI", Workspace: workspace,
		Launch: func(model string) (child.Command, error) {
			// Check at each start: the workspace may have changed.
			if err := checkTrust(req.Session, req.Profile); err != nil {
				return child.Command{}, err
			}
			cmd, err := launch(req.Session, req.Profile, workspace, model)
			cmd.Stderr = func(line []byte) bool { return readLog(out, line) }
			return cmd, err
		},
		ModelAtLaunch: true,
		MCPServers:    servers,
		Guard:         agent.NewGuard(req.Session, skillsPath, extensionPath),
		History:       live.history,
		Began:         live.began,
		Offers:        true,
		Translate: func(u acp.Update) acp.Update {
			if u.Kind == string(runnerscripts.TypeCommands) {
				return withCommands(u, req.Profile.Commands)
			}
			live.hear(u)
			return translateUpdate(u)
		},
		Usage:         live.usage,
		Ended:         live.ended,
		Took:          live.tookPrompt,
		Answered:      live.hasAnswer,
		Spoiled:       live.hasLostResult,
		Forgets:       true,
		WholeThoughts: true,
		Failure:       failure,
		StartTime:     d.patience,
		Silence:       d.silence,
	}
	if !req.Agent.TrustWorkspace {
		cfg.Modes = map[string]string{modeAutoEdit: modeDefault, modeYOLO: modeDefault}
		cfg.Allows = allows
		// For "allow always" the program would change its mode, which it refuses in an untrusted
		// workspace.
		cfg.KeepsAlways = func(call runnerscripts.ToolCall) bool { return call.Kind == runnerscripts.ToolEdit }
	}
	conv, err := acp.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return commanded{Conversation: conv, commands: req.Profile.Commands}, nil
}

// mcpServers returns the profile's servers with expanded values: the program expands variables
// only from an environment without secrets.
func mcpServers(req runnerscripts.QueryRequest) ([]runnerscripts.MCPServer, error) {
	servers, err := agent.Expand(agent.Servers(req.Session, req.Profile), environment(req.Session, true))
	if err != nil {
		return nil, err
	}
	for _, m := range servers {
		for _, values := range []map[string]string{m.Env, m.Headers} {
			for key, value := range values {
				values[key] = strings.ReplaceAll(value, "$", `\$`)
			}
		}
	}
	return servers, nil
}

// Transcript returns the session's history.
func (d Driver) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	if err := check(req.Session); err != nil {
		return runnerscripts.Transcript{}, err
	}
	t, err := readTranscript(req.Session)
	if err != nil || !req.Events {
		return t, err
	}
	return t, d.Replay(ctx, req.Session, t, out)
}

// Replay emits the conversation of a transcript.
func (Driver) Replay(ctx context.Context, s runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	workspace, err := realWorkspace(s)
	if err != nil {
		return err
	}
	return replay(ctx, t, workspace, out)
}

// The permission modes of the program.
const (
	modeDefault  = "default"
	modeAutoEdit = "autoEdit"
	modeYOLO     = "yolo"
	modePlan     = "plan"
)

// allows reports whether a permission mode allows a call without asking.
func allows(mode string, call runnerscripts.ToolCall) bool {
	return mode == modeYOLO || mode == modeAutoEdit && call.Kind == runnerscripts.ToolEdit
}
