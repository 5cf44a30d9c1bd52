package opencode

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const (
	// startTime limits the start of the server, which usually takes seconds.
	startTime = 3 * time.Minute
	// silenceTime is how long the server may be silent. It sends a heartbeat every ten seconds,
	// unless the machine is overloaded.
	silenceTime = 2 * time.Minute
	// maxRetries is how many consecutive requests to the model's API may fail. The program waits 2,
	// 4, 8, 16 and 30 seconds between them.
	maxRetries = 5
)

// Driver drives OpenCode. The zero value is ready to use.
type Driver struct {
	patience time.Duration // how long the server may take to start; zero means startTime
	silence  time.Duration // how long the server may be silent; zero means silenceTime
	retries  int           // allowed consecutive failures of the model's API; zero means maxRetries
}

var _ agent.Driver = Driver{}

// Setup writes the configuration and restores the transcript.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if err := check(req.Session, req.Profile); err != nil {
		return runnerscripts.SetupData{}, err
	}
	v, err := version(ctx, req.Session)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	data := runnerscripts.SetupData{AgentVersion: v}
	if major, _, _ := strings.Cut(testedVersion, "."); !strings.HasPrefix(v, major+".") {
		return data, agent.Failed("install OpenCode %s in the sandbox, which this runner was tested with: it has %q", testedVersion, v)
	}
	if err := os.MkdirAll(tempDir(req.Session), 0o700); err != nil { // an installation may need it
		return data, err
	}
	if err := installProfile(ctx, req.Session, req.Profile); err != nil {
		return data, err
	}
	if err := writeConfiguration(req.Session, req.Profile); err != nil {
		return data, err
	}
	if req.Transcript == nil {
		return data, nil
	}
	return data, restore(ctx, req.Session, *req.Transcript)
}

// Start starts the server; a session with a transcript resumes.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	if err := check(req.Session, req.Profile); err != nil {
		return nil, err
	}
	rules, err := permissionRules(req.Session, req.Profile)
	if err != nil {
		return nil, err
	}
	c := &conversation{
		session:     req.Session,
		profile:     req.Profile,
		guard:       agent.NewGuard(req.Session, skillsDir),
		raw:         req.Raw,
		out:         out,
		patience:    cmp.Or(d.patience, startTime),
		silence:     cmp.Or(d.silence, silenceTime),
		retries:     cmp.Or(d.retries, maxRetries),
		translate:   newTranslator(out, req.Paths.Workspace),
		deferred:    map[string][]event{},
		permissions: agent.Permissions[question]{Out: out}, early: map[string]question{},
		rules: rules,
		model: req.Agent.Model,
		mode:  cmp.Or(req.Agent.PermissionMode, modeBuild),
	}
	if _, err := c.start(ctx); err != nil {
		return nil, err
	}
	c.life.Watch(ctx, func() { c.preventStarts().kill() })
	return c, nil
}

// Transcript reads the session's history.
func (d Driver) Transcript(ctx context.Context, req runnerscripts.TranscriptRequest, out agent.Sink) (runnerscripts.Transcript, error) {
	if err := check(req.Session, runnerscripts.Profile{}); err != nil {
		return runnerscripts.Transcript{}, err
	}
	t, err := readTranscript(ctx, req.Session, cmp.Or(d.patience, startTime))
	if err != nil || !req.Events {
		return t, err
	}
	return t, replay(t, newTranslator(out, req.Paths.Workspace))
}

// Replay emits the conversation of a transcript.
func (Driver) Replay(_ context.Context, s runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	return replay(t, newTranslator(out, s.Paths.Workspace))
}
