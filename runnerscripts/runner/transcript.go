package main

import (
	"context"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func (a *app) readTranscript(ctx context.Context) error {
	req, err := request[runnerscripts.TranscriptRequest](ctx, runnerscripts.NewLineReader(a.stdin, 0))
	if err != nil {
		return err
	}
	driver, err := a.driver(req.Agent.Name)
	if err != nil {
		return err
	}
	out := &sink{enc: a.stdout, session: req.SessionID, source: runnerscripts.SourceTranscript}
	var history runnerscripts.Transcript
	err = a.guarded(func() (err error) {
		history, err = driver.Transcript(ctx, req, out)
		return err
	})
	if err != nil {
		return err
	}
	if err := out.Err(); err != nil {
		return err
	}
	if history.Main != "" {
		history.Agent = req.Agent.Name
	}
	return a.finish(history)
}
