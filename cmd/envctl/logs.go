package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// logsFlags are the flags of logs.
type logsFlags struct {
	target
	follow, asJSON bool
}

func (a *app) newLogsCmd() *cobra.Command {
	f := &logsFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "logs [flags] ID",
		Short: "Print what happened to a sandbox and its agent",
		Long: `Print what an operator needs to know of a sandbox: for a container when it was started,
paused, killed or out of memory and how it ended, also for a while after it has gone;
for an agent of 'envctl run --keep' when its queries began and how they ended, what it asked,
what its runner reports, and what was printed to standard error, which has no times. If its
program died, that is there, with its process. ID may be that of a session.

What the agent says is in 'envctl attach' and 'envctl transcript'.`,
		Example: `  envctl logs 3f2a
  envctl logs --follow 3f2a
  envctl logs --json 3f2a | jq -r 'select(.source == "stderr").message'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on as long as the agent runs")
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (f *logsFlags) run(ctx context.Context, id string) (err error) {
	cfg, found, missing := f.locateSession(ctx, id)
	ended, isEnded := errors.AsType[*endedError](missing)
	switch {
	case isEnded:
		return f.ended(ctx, cfg, id, ended.record)
	case errors.Is(missing, errNoSandbox):
		return f.remembered(ctx, cfg, id, missing)
	case missing != nil:
		return missing
	}
	entries, err := environment.History(ctx, found.sandbox, found.id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // ErrNotExist: the engine has forgotten it
		return err
	}
	entries = append(entries, ofHost(found.info)...)
	if err := f.print(entries...); err != nil {
		return err
	}
	printed := len(entries) > 0
	if found.info.Kept || !found.info.Orphan { // an orphan has nothing to read, and attaching would delay its end
		more, err := f.printAgent(ctx, cfg, found.id, printed)
		if err != nil {
			return err
		}
		printed = printed || more
	}
	if !printed {
		fmt.Fprintf(f.app.err, "nothing is known of %s: no agent has printed anything, and what has happened to it is not remembered\n", found.id)
	}
	return nil
}

// printAgent prints what happened to the agent of a sandbox, and reports whether that was
// anything. begun says that something of the sandbox was printed.
func (f *logsFlags) printAgent(ctx context.Context, cfg environment.Config, id string, begun bool) (printed bool, err error) {
	env, err := environment.Attach(ctx, cfg, id)
	if errors.Is(err, primitives.ErrUnavailable) && begun {
		fmt.Fprintf(f.app.err, "what its agent has printed cannot be read: %s\n", err.Error())
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for entry, err := range env.Logs(ctx, f.follow) {
		if err == nil {
			err = f.print(entry)
		}
		if err != nil {
			return printed, err
		}
		printed = true
	}
	return printed, nil
}

// sourceHost is the source of entries that this machine knows by itself.
const sourceHost = "host"

// ofHost returns what this machine knows of a sandbox and its query.
func ofHost(s environment.SandboxInfo) (entries []environment.LogEntry) {
	add := func(at time.Time, format string, args ...any) {
		entries = append(entries, environment.LogEntry{Time: at, Source: sourceHost, Message: fmt.Sprintf(format, args...)})
	}
	if s.QueryOwned {
		for _, w := range s.Waiting {
			add(w.Since, "the agent waits for an answer: %s", w.Title)
		}
	}
	if s.QueryLost {
		add(time.Time{}, "the program of the query of %s, %s, died before the query ended", s.QueryBegan.Local().Format(time.DateTime), process(s.QueryBy))
	}
	switch {
	case s.Orphan:
		add(s.OrphanSince, "its program, %s, died; it is an orphan, and ends after its grace unless a program attaches", process(s.Owner))
	case s.Kept && s.QueryLost:
		add(time.Time{}, "it is kept, so its agent went on")
	}
	return entries
}

// process describes a program, which is given as host:pid.
func process(owner string) string {
	i := strings.LastIndexByte(owner, ':')
	if i < 0 {
		return "which is not known"
	}
	return "process " + owner[i+1:] + " on " + firstOf(owner[:i], "this machine")
}

// ended prints what is known of a sandbox that has ended, and of its session.
func (f *logsFlags) ended(ctx context.Context, cfg environment.Config, id string, r store.Record) error {
	if !slices.Contains(r.Sandboxes, id) && len(r.Sandboxes) > 0 {
		id = r.Sandboxes[len(r.Sandboxes)-1]
	}
	if err := f.remembered(ctx, cfg, id, errNoSandbox); err != nil && !errors.Is(err, errNoSandbox) {
		return err
	}
	return f.app.withSessions(ctx, func(s *sqlite.Store) error {
		now := sessionsNow(ctx, s, r)[0]
		return f.print(environment.LogEntry{Time: r.UpdatedAt, Source: sourceHost, Message: fmt.Sprintf(
			"the sandbox has ended; this is the last event of its session %s, which is %s: 'envctl sessions export %[1]s'", r.ID, now.status(),
		)})
	})
}

// remembered prints the history of a sandbox that no longer exists.
func (f *logsFlags) remembered(ctx context.Context, cfg environment.Config, id string, missing error) error {
	known := false
	for _, s := range choices(cfg.Sandbox) {
		entries, err := environment.History(ctx, s, id)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(missing, err)
		}
		if info, err := environment.Remembered(s.Type, id); err == nil {
			entries = append(entries, ofHost(info)...)
		}
		if err := f.print(entries...); err != nil {
			return err
		}
		known = known || len(entries) > 0
	}
	if known {
		return nil
	}
	return missing
}

func (f *logsFlags) print(entries ...environment.LogEntry) error {
	for _, e := range entries {
		if f.asJSON {
			if err := json.NewEncoder(f.app.out).Encode(e); err != nil {
				return err
			}
			continue
		}
		at := "-                  " // as wide as a time
		if !e.Time.IsZero() {
			at = e.Time.Local().Format(time.DateTime)
		}
		if err := f.app.out.Row(term.Dim(at), term.Plain(fmt.Sprintf("  %-6s  %s", e.Source, e.Message))); err != nil {
			return err
		}
	}
	return nil
}
