package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// transcriptFlags are the flags of transcript.
type transcriptFlags struct {
	target
	asJSON, native bool
}

func (a *app) newTranscriptCmd() *cobra.Command {
	f := &transcriptFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "transcript [flags] ID",
		Short: "Print the conversation of a sandbox's agent",
		Long:  "Print the conversation as the agent itself keeps it in the sandbox.",
		Example: `  envctl transcript 3f2a
  envctl transcript --json 3f2a | jq -r .type
  envctl transcript --native 3f2a > transcript.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	f.flags(cmd)
	f.agentFlag(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print events as JSON lines")
	cmd.Flags().BoolVar(&f.native, "native", false, "print the agent's own files, as one JSON object")
	cmd.MarkFlagsMutuallyExclusive("json", "native")
	return cmd
}

func (f *transcriptFlags) run(ctx context.Context, id string) (err error) {
	env, err := f.attachSession(ctx, id)
	if ended, ok := errors.AsType[*endedError](err); ok {
		return fmt.Errorf("the sandbox of the session %s has ended, and the agent's own files with it; 'envctl sessions export --text %[1]s' prints what was said", ended.session)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if f.native {
		t, err := env.ReadTranscript(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(f.app.out).Encode(t)
	}
	show := f.app.newTranscriptPrinter(f.asJSON)
	// The conversation is over: its events must not set the status.
	defer f.app.status.Busy("reading the conversation")()
	var seq uint64
	for ev, err := range env.ReadConversation(ctx) {
		if err != nil {
			return err
		}
		seq++
		ev.Seq = seq
		if err := show.event(ev); err != nil {
			return err
		}
	}
	return show.finish()
}
