package claude

import (
	"cmp"
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// startTime is far above the second that the program needs to start.
const startTime = 90 * time.Second

// Driver drives Claude Code. The zero value is ready to use.
type Driver struct {
	patience time.Duration // how long the program may take to start; zero means startTime
}

var _ agent.Driver = Driver{}

// Setup writes the profile and restores the transcript into the session's own folders. It never
// makes the agent trust the workspace.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if err := check(req.Session); err != nil {
		return runnerscripts.SetupData{}, err
	}
	if err := checkProfile(req.Profile); err != nil {
		return runnerscripts.SetupData{}, err
	}
	v, err := version(ctx, req.Session)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	data := runnerscripts.SetupData{AgentVersion: v}
	if err := makeFolders(req.Session); err != nil {
		return data, err
	}
	if err := writeProfile(ctx, req.Session, req.Profile); err != nil {
		return data, err
	}
	if req.Transcript == nil {
		return data, nil
	}
	return data, restore(req.Session, *req.Transcript)
}

// writeProfile replaces the written profile.
func writeProfile(ctx context.Context, s runnerscripts.Session, p runnerscripts.Profile) error {
	files, err := profileFiles(s, p)
	if err != nil {
		return err
	}
	if err := agent.WriteProfile(s, files); err != nil {
		return err
	}
	if err := agent.InstallServers(ctx, s, p, environment(s)); err != nil {
		return err
	}
	return installPlugins(ctx, s, p)
}

// Start starts the program; a session with a transcript resumes.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := check(req.Session); err != nil {
		return nil, err
	}
	if err := checkWritten(req.Session, req.Profile); err != nil {
		return nil, err
	}
	c := &conversation{
		session:     req.Session,
		profile:     req.Profile,
		guard:       agent.NewGuard(req.Session, readable(req.Profile)...),
		raw:         req.Raw,
		out:         out,
		translate:   newTranslator(out, req.Paths),
		replies:     map[string]func(controlResponse){},
		permissions: agent.Permissions[question]{Out: out},
		model:       req.Agent.Model,
		mode:        req.Agent.PermissionMode,
		schema:      toolSchema(req.OutputSchema), // of the first prompt, which then needs no second start
		patience:    cmp.Or(d.patience, startTime),
	}
	if _, err := c.start(ctx); err != nil {
		return nil, err
	}
	c.life.Watch(ctx, c.kill)
	return c, nil
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
	return t, replay(ctx, t, newTranslator(out, req.Paths))
}

// Replay emits the conversation of a transcript.
func (Driver) Replay(ctx context.Context, s runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	return replay(ctx, t, newTranslator(out, s.Paths))
}
