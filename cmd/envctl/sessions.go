package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

func (a *app) newSessionsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List, show, export, back up and remove the stored sessions",
		Long: `List, show, export, back up and remove the stored sessions. They are in the state folder
(~/.local/state/agentenv/sessions) and stay there, also without their sandbox, until they
are removed.

An ID may be cut short, as long as it fits only one session. The ID or the name of its
sandbox does, too.`,
		Example: `  envctl sessions ls
  envctl sessions show 3f2a
  envctl sessions export 3f2a > session.jsonl
  envctl sessions backup ~/backups/sessions-1
  envctl sessions rm 3f2a`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.newSessionsListCmd(), a.newSessionsShowCmd(), a.newSessionsExportCmd(), a.newSessionsBackupCmd(), a.newSessionsRemoveCmd())
	return cmd
}

func (a *app) newSessionsListCmd() *cobra.Command {
	var asJSON bool
	var filter store.Filter
	var status string
	statuses := sessionStatuses()
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the stored sessions, the latest first",
		Long: `List the stored sessions, the latest first. STATUS is what a session does now: it is
"running" if a program drives it or its kept sandbox goes on with the query, "waiting" if the
agent has asked something ('envctl answer'), "interrupted" if its program died and nothing works
on it, "failed" if its last query failed, else "idle".`,
		Example: `  envctl sessions ls
  envctl sessions ls --agent claude --status failed
  envctl sessions ls --json | jq -r .id`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case status != "" && !slices.Contains(statuses, status):
				return usagef("--status: there is no status %q; %s", status, meant(status, statuses))
			case filter.Limit < 0:
				return usagef("--limit: %d is negative; give a positive number, or 0 for all", filter.Limit)
			}
			var list []listedSession
			var size string
			if a.server != "" {
				served, err := a.servedSessions(cmd.Context(), filter, status)
				if err != nil {
					return err
				}
				return a.printSessions(served, asJSON)
			}
			err := a.withSessions(cmd.Context(), func(s *sqlite.Store) (err error) {
				if list, err = listSessions(cmd.Context(), s, filter, status); err == nil {
					size, _, err = storeSize(cmd.Context(), s)
				}
				return err
			})
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := a.printSessions(list, asJSON); err != nil || asJSON {
				return err
			}
			return a.printSize(size)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	fl.StringVarP(&filter.Agent, "agent", "a", "", "only those of this agent")
	fl.StringVar(&status, "status", "", "only those with this status: "+strings.Join(statuses, ", "))
	fl.IntVarP(&filter.Limit, "limit", "n", 0, "only so many; 0 for all")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(agentNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statuses, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printSessions prints sessions as a table, or as JSON lines.
func (a *app) printSessions(list []listedSession, asJSON bool) error {
	if asJSON {
		return printLines(a, list)
	}
	rows := [][]term.Span{term.Plains("ID", "STATUS", "AGENT", "SANDBOX", "EVENTS", "AGE", "TITLE")}
	for _, r := range list {
		if r.Status == damagedStatus { // what else there is is unknown
			rows = append(rows, term.Plains(r.ID, r.Status, "-", "-", "-", "-", "-"))
			continue
		}
		rows = append(rows, term.Plains(a.shortSession(r.ID), r.status(), firstOf(r.Agent, "-"),
			firstOf(r.Sandbox.Type, "-"), fmt.Sprint(r.LastSeq), age(r.UpdatedAt), firstOf(r.Title, "-")))
	}
	return a.out.Table(rows...)
}

// shortSession returns a session ID for display: on a terminal only its first part.
func (a *app) shortSession(id string) string {
	if first, _, ok := strings.Cut(id, "-"); ok && len(first) >= 8 && a.out.Terminal {
		return first
	}
	return id
}

func (a *app) newSessionsShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [flags] ID",
		Short: "Show what is known of a session",
		Example: `  envctl sessions show 3f2a
  envctl sessions show --json 3f2a | jq .config`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := func(now listedSession) error {
				if asJSON {
					return json.NewEncoder(a.out).Encode(now)
				}
				return a.showSession(now)
			}
			if a.server != "" {
				now, err := a.showServed(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return show(now)
			}
			return a.withSession(cmd.Context(), args[0], func(s *sqlite.Store, r store.Record) error {
				r.State, r.StateSeq = nil, 0
				return show(sessionsNow(cmd.Context(), s, r)[0])
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.ValidArgsFunction = a.completeSessions(1)
	return cmd
}

func (a *app) showSession(r listedSession) error {
	sandbox := "-"
	if r.Sandbox.ID != "" {
		sandbox = r.Sandbox.Type + " " + r.Sandbox.ID
	}
	rows := [][]term.Span{
		term.Plains("ID", r.ID), term.Plains("title", firstOf(r.Title, "-")), term.Plains("summary", firstOf(r.Summary, "-")),
		term.Plains("status", r.status()), term.Plains("agent", firstOf(r.Agent, "-")), term.Plains("sandbox", sandbox),
		term.Plains("copy of", firstOf(r.Parent, "-")), term.Plains("events", fmt.Sprint(r.LastSeq)),
		term.Plains("tokens", fmt.Sprintf("%d in, %d out", r.Usage.TotalInput(), r.Usage.OutputTokens)),
		term.Plains("cost", dollars(r.Usage.CostUSD)),
		term.Plains("created", r.CreatedAt.Local().Format(time.DateTime)), term.Plains("updated", r.UpdatedAt.Local().Format(time.DateTime)),
	}
	for _, k := range slices.Sorted(maps.Keys(r.Metadata)) {
		rows = append(rows, term.Plains(k, r.Metadata[k]))
	}
	return a.out.Table(rows...)
}

func (a *app) newSessionsExportCmd() *cobra.Command {
	var text bool
	cmd := &cobra.Command{
		Use:   "export [flags] ID",
		Short: "Print the events of a session as JSON lines",
		Long: `Print the events of a session as JSON lines, from the first to the last one: all that
has happened, in the form that 'envctl run --json' prints. --text prints the conversation
in them for people.`,
		Example: `  envctl sessions export 3f2a > session.jsonl
  envctl sessions export --text 3f2a | less`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if a.server != "" {
				s, err := a.servedSession(ctx, args[0])
				if err != nil {
					return err
				}
				return a.export(upToNow(ctx, s, 1), text)
			}
			return a.withSession(ctx, args[0], func(s *sqlite.Store, r store.Record) error {
				return a.export(s.Events(ctx, r.ID, 1), text)
			})
		},
	}
	cmd.Flags().BoolVar(&text, "text", false, "print the conversation as text")
	cmd.ValidArgsFunction = a.completeSessions(1)
	return cmd
}

// export prints the events of a session.
func (a *app) export(events iter.Seq2[runnerscripts.Event, error], text bool) error {
	show := a.newTranscriptPrinter(!text)
	for ev, err := range events {
		if err != nil {
			return err
		}
		if err := show.event(ev); err != nil {
			return err
		}
	}
	return show.finish()
}

func (a *app) newSessionsBackupCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy all stored sessions to a new folder, while programs use them",
		Long: `Copy all stored sessions, as of one moment, to a new folder, while programs use them. On the
same disk large files are hard links and take no room. DIR appears only when it is whole.

To restore, end the programs that use the sessions, and put DIR in the place of the folder
of sessions (~/.local/state/agentenv/sessions).`,
		Example: `  envctl sessions backup ~/backups/sessions-1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSessions(cmd.Context(), func(s *sqlite.Store) error { return s.Backup(cmd.Context(), args[0]) })
		},
	}
}

// withSessions calls use, which changes nothing, with the store of sessions. It returns
// fs.ErrNotExist if there is no store yet.
func (a *app) withSessions(ctx context.Context, use func(*sqlite.Store) error) error {
	s, err := sessionstore.OpenToRead(ctx)
	if err != nil {
		return err
	}
	return errors.Join(use(s), s.Close())
}

// changeSessions is withSessions for a change of the store.
func (a *app) changeSessions(ctx context.Context, use func(*sqlite.Store) error) error {
	s, err := sessionstore.OpenExisting(ctx)
	if err != nil {
		return err
	}
	return errors.Join(use(s), s.Close())
}

// listSessions returns the sessions that the filter selects and that have a status, which may be
// empty for any.
func listSessions(ctx context.Context, s *sqlite.Store, f store.Filter, status string) ([]listedSession, error) {
	most := f.Limit
	if status != "" {
		f.Limit = 0 // the status is that of now, which the store does not know
	}
	list, err := records(ctx, s, f)
	if err != nil {
		return nil, err
	}
	now := slices.DeleteFunc(sessionsNow(ctx, s, list...), func(l listedSession) bool { return status != "" && l.Status != status })
	if most > 0 {
		now = now[:min(most, len(now))]
	}
	return now, nil
}

// damagedStatus is the status of a session whose record cannot be read.
const damagedStatus = "damaged"

// records returns the matching records, and those that are damaged, with their ID and this status.
func records(ctx context.Context, s store.Store, f store.Filter) ([]store.Record, error) {
	var list []store.Record
	for r, err := range s.List(ctx, f) {
		switch {
		case r.ID != "" && errors.Is(err, store.ErrCorrupt):
			r.Status = damagedStatus
		case err != nil:
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// completeSessions completes the IDs of sessions, for the first most arguments. A negative most
// means no limit.
func (a *app) completeSessions(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = a.withSessions(cmd.Context(), func(s *sqlite.Store) error { // a store that cannot be read offers nothing
			list, err := records(cmd.Context(), s, store.Filter{})
			for _, r := range list {
				if strings.HasPrefix(r.ID, begin) && !slices.Contains(args, r.ID) {
					ids = append(ids, cobra.CompletionWithDesc(r.ID, strings.TrimSpace(r.Agent+" "+r.Title)))
				}
			}
			return err
		})
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// storeSize says how much room the stored sessions take, and how much they may. nearly reports
// whether that is nine tenths of it, or more.
func storeSize(ctx context.Context, s *sqlite.Store) (text string, nearly bool, err error) {
	size, limit, err := s.Size(ctx)
	if err != nil {
		return "", false, err
	}
	text = fmt.Sprintf("take %d MiB of the disk", size>>20)
	if limit > 0 {
		text += fmt.Sprintf(", of at most %d MiB", limit>>20)
	}
	return text, limit > 0 && size >= limit/10*9, nil
}

// printSize prints what storeSize has said, unless there is no store.
func (a *app) printSize(text string) error {
	if text == "" {
		return nil
	}
	return a.err.Row(term.Dim("all stored sessions " + text))
}

// collectBlobs removes the orphans of killed programs from the store of sessions, and returns
// them, and what storeSize says afterwards. With dryRun it removes none.
func collectBlobs(ctx context.Context, dryRun bool) (removed []environment.Garbage, size string, err error) {
	s, err := sessionstore.OpenExisting(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	names, err := s.Collect(ctx, dryRun)
	for _, name := range names {
		removed = append(removed, environment.Garbage{
			Type: "-", Garbage: primitives.Garbage{Kind: "blob", ID: name, Why: "no stored session has it"},
		})
	}
	if err == nil {
		size, _, err = storeSize(ctx, s)
	}
	return removed, size, errors.Join(err, s.Close())
}
