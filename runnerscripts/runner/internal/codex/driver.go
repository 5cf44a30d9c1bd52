package codex

import (
	"cmp"
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// startTime limits the start of the program, which normally takes a fraction of a second.
const startTime = 90 * time.Second

// Driver drives Codex. The zero value is ready to use.
type Driver struct {
	patience time.Duration // how long the program may take to start; zero means startTime
	ending   time.Duration // how long an interrupted query waits for its commands; zero means interruptTime
}

var _ agent.Driver = Driver{}

// Setup writes the profile and restores the transcript into the session's Codex folder.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if err := check(req.Session, req.Profile); err != nil {
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
	if err := agent.WriteProfile(req.Session, profileFiles(req.Profile)); err != nil {
		return data, err
	}
	if err := agent.InstallServers(ctx, req.Session, req.Profile, environment(req.Session)); err != nil {
		return data, err
	}
	if req.Transcript == nil {
		return data, nil
	}
	return data, restore(req.Session, *req.Transcript)
}

// Start starts the program. It resumes a session that has a transcript.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := check(req.Session, req.Profile); err != nil {
		return nil, err
	}
	c := &conversation{
		session:     req.Session,
		profile:     req.Profile,
		tools:       toolRulesOf(req.Profile),
		guard:       agent.NewGuard(req.Session),
		raw:         req.Raw,
		out:         out,
		translate:   newTranslator(out),
		permissions: agent.Permissions[question]{Out: out},
		working:     map[string]string{},
		model:       req.Agent.Model,
		mode:        modeOf(req.Agent),
		patience:    cmp.Or(d.patience, startTime),
		ending:      cmp.Or(d.ending, interruptTime),
	}
	if _, err := c.start(ctx); err != nil {
		return nil, err
	}
	c.life.Watch(ctx, c.kill)
	return c, nil
}

// Transcript returns the session's history.
func (Driver) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	if err := check(req.Session, runnerscripts.Profile{}); err != nil {
		return runnerscripts.Transcript{}, err
	}
	t, err := readTranscript(req.Session)
	if err != nil || !req.Events {
		return t, err
	}
	return t, replay(ctx, t, newTranslator(out))
}

// Replay emits the conversation of a transcript.
func (Driver) Replay(ctx context.Context, _ runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	return replay(ctx, t, newTranslator(out))
}
