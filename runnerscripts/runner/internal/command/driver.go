package command

import (
	"cmp"
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// silenceTime limits how long a persistent executor may print nothing during a turn. A one_shot
// executor has no limit.
const silenceTime = 15 * time.Minute

// Driver drives executors. The zero value is ready to use.
type Driver struct {
	silence time.Duration // zero means silenceTime
}

var _ agent.Driver = Driver{}

// Recipe installs nothing: the user provides the program.
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
	if err := writeFiles(req.Session, p); err != nil {
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

// Start prepares a conversation. The program starts with the first prompt, because its
// invocation contains that prompt.
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
		silence: cmp.Or(d.silence, silenceTime), prompts: prompts, started: prompts > 0,
	}
	c.life.Watch(ctx, c.kill)
	out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionInitialized, runnerscripts.SessionInitialized{
		Agent: name, Resumed: prompts > 0,
	})
	return c, nil
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
