package command

import (
	"cmp"
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// silenceTime is how long a persistent executor may print nothing during a turn.
// One that is started for each prompt may be as silent as it likes until it ends.
const silenceTime = 15 * time.Minute

// Driver drives executors. The zero value is ready to use.
type Driver struct {
	silence time.Duration // zero means silenceTime
}

var _ agent.Driver = Driver{}

// Recipe says that nothing can be installed: the program is the user's own.
func (Driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent: name,
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureSystemPrompt,
			runnerscripts.FeatureMCPStdio,
			runnerscripts.FeatureMCPHTTP,
			runnerscripts.FeatureInterrupt,
		},
	}
}

// Setup looks for the program and restores the transcript.
func (Driver) Setup(ctx context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	p, err := check(req.Session)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	cmd, err := launch(req.Session, p)
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

// Start makes ready for prompts. The program is started with the first one, which
// its invocation has.
func (d Driver) Start(ctx context.Context, req runnerscripts.QueryRequest, out agent.Sink) (agent.Conversation, error) {
	p, err := check(req.Session)
	if err != nil {
		return nil, err
	}
	if _, err := launch(req.Session, p); err != nil {
		return nil, err
	}
	servers, err := agent.Expand(agent.Servers(req.Session, req.Profile), environment(req.Session))
	if err != nil {
		return nil, err
	}
	t, err := record.Transcript(ctx, req.Session, nil)
	if err != nil {
		return nil, err
	}
	prompts := 0
	for l := range record.Lines(t.Main) {
		if l.Type == runnerscripts.TypeUserMessage {
			prompts++
		}
	}
	rec := record.New(out, record.File(req.Session))
	c := &conversation{
		session: req.Session, profile: p, servers: servers, raw: req.Raw, out: rec, recorder: rec,
		silence: cmp.Or(d.silence, silenceTime), prompts: prompts,
	}
	c.life.Watch(ctx, c.kill)
	out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
		Agent: name, Resumed: prompts > 0,
	})
	return c, nil
}

// Transcript reads what was recorded of the session.
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
