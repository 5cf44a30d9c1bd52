package handoff

import (
	"context"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// Converter is a driver that can write another agent's conversation as a transcript of its own
// agent.
type Converter interface {
	// Convert returns a transcript that Setup can restore. The conversation is within bounds
	// and has at least one item.
	Convert(s runnerscripts.Session, c Conversation) (runnerscripts.Transcript, error)
	// Restores returns how the agent gets that transcript.
	Restores() runnerscripts.Restored
}

// FindDriver returns the driver of an agent by its name.
type FindDriver func(agentName string) (agent.Driver, error)

// SetUp sets up a session with the driver of its agent. If the transcript belongs to another agent,
// the driver converts it if it can. Otherwise SetUp writes a summary that WithPreface puts before
// the first prompt.
func SetUp(ctx context.Context, find FindDriver, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	driver, err := find(req.Agent.Name)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	t := req.Transcript
	if t == nil || t.Main == "" {
		return driver.Setup(ctx, req)
	}
	// An old summary belongs to another conversation.
	if err := removePreface(req.Session); err != nil {
		return runnerscripts.SetupData{}, err
	}
	if t.Agent == "" || t.Agent == req.Agent.Name {
		return driver.Setup(ctx, req)
	}
	conv, err := read(ctx, find, req.Session, *t)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	why := ""
	if c, ok := driver.(Converter); ok {
		data, err := convert(ctx, driver, c, req, conv.Bounded())
		if err == nil || ctx.Err() != nil {
			return data, err
		}
		why = err.Error()
	}
	// If the cause is not the transcript, this attempt fails as well.
	req.Transcript = nil
	data, err := driver.Setup(ctx, req)
	if err != nil {
		return data, err
	}
	data.Restored = runnerscripts.TranscriptRestored{From: t.Agent, Way: runnerscripts.RestoredSummary, Reason: why}
	return data, writePreface(req.Session, conv.Summary())
}

func convert(ctx context.Context, driver agent.Driver, c Converter, req runnerscripts.SetupRequest, conv Conversation) (runnerscripts.SetupData, error) {
	t, err := c.Convert(req.Session, conv)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	req.Transcript = &t
	data, err := driver.Setup(ctx, req)
	data.Restored = runnerscripts.TranscriptRestored{From: conv.Agent, Way: c.Restores()}
	return data, err
}

// read reads the transcript of another agent.
func read(ctx context.Context, find FindDriver, s runnerscripts.Session, t runnerscripts.Transcript) (Conversation, error) {
	driver, err := find(t.Agent)
	if err != nil {
		return Conversation{}, agent.Invalid("correct transcript.agent: %v", err)
	}
	var c Collector
	err = driver.Replay(ctx, s, t, &c)
	conv := c.Conversation(t.Agent)
	if ctx.Err() != nil {
		return conv, context.Cause(ctx)
	}
	if err == nil && len(conv.Items) == 0 {
		err = fmt.Errorf("there is no message of a user in it")
	}
	if err != nil {
		return conv, agent.Invalid("the transcript of the agent %q cannot be read, so that %q cannot continue it: %v; begin a new session",
			t.Agent, s.Agent.Name, err)
	}
	return conv, nil
}
