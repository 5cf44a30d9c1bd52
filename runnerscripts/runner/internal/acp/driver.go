package acp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// name is the agent's name in requests.
const name = "acp"

// Driver drives the agent that a session's agent.command or launch starts. The zero value
// is ready to use.
type Driver struct {
	// Agent is the agent's name in requests; empty means "acp".
	Agent string
	// The limits for start, silence and interrupt; zero means startTime, silenceTime and
	// cancelTime.
	patience, silence, cancel time.Duration
}

var _ agent.Driver = Driver{}

// settings is the content of agent.config.
type settings struct {
	// AuthMethod is the id of one of the agent's login methods, for agents that need a login before
	// each session. Empty means no login.
	AuthMethod string `json:"auth_method,omitempty"`
}

// check decodes agent.config, and refuses unsupported settings instead of ignoring them.
func check(s runnerscripts.Session) (settings, error) {
	var set settings
	a := s.Agent
	if len(a.Config) > 0 {
		if err := decodeStrict(a.Config, &set); err != nil {
			return set, agent.Invalid(`correct agent.config, which may have "auth_method": %v`, err)
		}
	}
	switch {
	case a.SystemPrompt != "":
		return set, agent.Unsupported("leave agent.system_prompt out: ACP has no way to give one to an agent")
	case a.MaxTurns != 0:
		return set, agent.Unsupported("leave agent.max_turns out: ACP has no way to limit an agent")
	case !agent.IsUUID(s.SessionID):
		return set, agent.Invalid("give session_id as a UUID, not %q", s.SessionID)
	}
	return set, nil
}

// Recipe installs nothing: the user provides the program. It lists the features of ACP; if an
// agent lacks one, the driver refuses it by name. A new process can resume a session, but
// another sandbox cannot: the agent's memory is in files that the driver does not know.
func (d Driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent: cmp.Or(d.Agent, name),
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureModel,
			runnerscripts.FeaturePermissionMode,
			runnerscripts.FeatureMCPStdio,
			runnerscripts.FeatureMCPHTTP,
			runnerscripts.FeaturePermissions,
			runnerscripts.FeatureAllowAlways,
			runnerscripts.FeatureInterrupt,
			runnerscripts.FeatureSetMode,
			runnerscripts.FeatureSetModel,
			runnerscripts.FeatureThinking,
			runnerscripts.FeatureUsage,
			runnerscripts.FeatureCost,
			runnerscripts.FeatureImages,
			runnerscripts.FeaturePDF,
			runnerscripts.FeatureTextFiles,
		},
	}
}

// Setup looks for the program and restores the transcript. The agent's own memory is in files that
// this driver does not know.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if _, err := check(req.Session); err != nil {
		return runnerscripts.SetupData{}, err
	}
	cmd, err := launch(req.Session)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	if err := agent.InstallServers(ctx, req.Session, req.Profile, cmd.Env); err != nil {
		return runnerscripts.SetupData{}, err
	}
	if req.Transcript == nil {
		return runnerscripts.SetupData{}, nil
	}
	return runnerscripts.SetupData{}, agent.RestoreFile(record.File(req.Session), req.Transcript.Main)
}

// launch returns the command that starts the program.
func launch(s runnerscripts.Session) (child.Command, error) {
	wanted := command(s)
	if len(wanted) == 0 {
		return child.Command{}, agent.Invalid(`name the agent's program in agent.command, for example ["opencode", "acp"]: the agent %q has no program of its own`, s.Agent.Name)
	}
	env := environment(s)
	argv, err := child.Find(wanted, env)
	advice := "install the agent in the sandbox, or correct agent.command"
	if l := s.Launch; err != nil && l != nil && len(s.Agent.Command) == 0 {
		advice = l.Advice
		if l.UVX != "" {
			if through, uerr := child.Find(append([]string{"uvx", l.UVX}, l.Args...), env); uerr == nil {
				argv, err = through, nil
			}
		}
	}
	if err != nil {
		return child.Command{}, &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAgentMissing, Message: fmt.Sprintf("%s: %v", advice, err),
		}
	}
	return child.Command{Args: argv, Dir: s.Paths.Workspace, Env: env, Unpack: filepath.Dir(record.File(s))}, nil
}

// command returns the agent's program, to be found in PATH, and its arguments; nothing if the
// request names none.
func command(s runnerscripts.Session) []string {
	if l := s.Launch; l != nil && len(s.Agent.Command) == 0 {
		return append([]string{l.Program}, l.Args...)
	}
	return s.Agent.Command
}

// environment returns the program's whole environment.
func environment(s runnerscripts.Session) []string {
	var own map[string]string
	if s.Launch != nil {
		own = s.Launch.Env
	}
	return child.Environ(map[string]string{"HOME": s.Paths.Home}, own, agent.GatewayVariables(s), s.Agent.Env)
}

// Start starts the program, and resumes a recorded session if the agent can.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	set, err := check(req.Session)
	if err != nil {
		return nil, err
	}
	if _, err := launch(req.Session); err != nil {
		return nil, err
	}
	servers, err := agent.Expand(agent.Servers(req.Session, req.Profile), environment(req.Session))
	if err != nil {
		return nil, err
	}
	rec := record.New(out, record.File(req.Session))
	conv, err := Start(ctx, Config{
		Query:      req,
		Out:        rec,
		Program:    fmt.Sprintf("the agent %q", command(req.Session)[0]),
		MCPServers: servers,
		Guard:      agent.NewGuard(req.Session),
		Launch:     func(string) (child.Command, error) { return launch(req.Session) },
		AuthMethod: set.AuthMethod,
		History:    func() (History, error) { return readHistory(req.Session) },
		Began: func(id, program, version string) error {
			return rec.Note(madeSession{SessionID: id, Agent: program, Version: version})
		},
		StartTime:  d.patience,
		Silence:    d.silence,
		CancelTime: d.cancel,
	})
	if err != nil {
		_ = rec.Close() // the other error is the reason
		return nil, err
	}
	return recorded{Conversation: conv, recorder: rec}, nil
}

// Transcript reads the record of the session.
func (Driver) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	if _, err := check(req.Session); err != nil {
		return runnerscripts.Transcript{}, err
	}
	if !req.Events {
		out = nil
	}
	return record.Transcript(ctx, req.Session, out)
}

// Replay emits the conversation of a transcript.
func (Driver) Replay(ctx context.Context, _ runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	return record.Replay(ctx, t.Main, out)
}

// decodeStrict decodes JSON and refuses unknown fields.
func decodeStrict(data json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
