package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// listFlags are the flags of ls.
type listFlags struct {
	target
	asJSON, recursive bool
	pattern           string
}

func (a *app) newListCmd() *cobra.Command {
	f := &listFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "ls [flags] [ID[:PATH]]",
		Short: "List the sandboxes, or the files of one",
		Long: `List the sandboxes, or the files of one. A sandbox is "in use" by the program that made
it, "kept" after that, "ending", or an "orphan" of a program that has died, which
'envctl gc' removes. "(guest N)" marks one of another release of envctl, whose guest
speaks version N of the protocol.

QUERY is the agent's latest query: "running"; "waiting" for an answer to a question, see
'envctl answer'; "ended"; or "interrupted", as its program died and its agent with it. The agent,
its query and the cost of all queries are known of sandboxes that were made on this machine.`,
		Example: `  envctl ls
  envctl ls 3f2a
  envctl ls -r --pattern '**/*.go' 3f2a:src`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return f.sandboxes(cmd.Context())
			}
			at := parsePlace(args[0])
			if at.id == "" {
				at = place{id: args[0]}
			}
			return f.files(cmd.Context(), at)
		},
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	fl.BoolVarP(&f.recursive, "recursive", "r", false, "list what is in folders, too")
	fl.StringVar(&f.pattern, "pattern", "", "list only paths that match, as in '**/*.go'")
	return cmd
}

func (f *listFlags) sandboxes(ctx context.Context) error {
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	from := choices(cfg.Sandbox)
	found, failed := listAll(ctx, from)
	list := withQueries(ctx, cfg, from, found)
	if f.asJSON {
		return errors.Join(printLines(f.app, list), failed)
	}
	rows := [][]term.Span{term.Plains("ID", "NAME", "TYPE", "AGE", "STATUS", "AGENT", "QUERY", "COST")}
	for _, s := range list {
		rows = append(rows, term.Plains(
			f.app.shortID(s.ID), firstOf(s.Name, "-"), s.Type, age(s.Created), s.status(), firstOf(s.Agent, "-"), since(s), dollars(s.Usage.CostUSD)))
	}
	return errors.Join(f.app.out.Table(rows...), failed)
}

// shortID returns an ID for display: on a terminal without the common prefix of container IDs.
func (a *app) shortID(id string) string {
	if a.out.Terminal {
		return strings.TrimPrefix(id, idPrefix)
	}
	return id
}

// status returns the status or the use of a sandbox, and its guest version if that differs from
// this release's.
func (s listed) status() string {
	text := s.use()
	if v := s.GuestVersion; v != 0 && v != guest.Version {
		text += fmt.Sprintf(" (guest %d)", v)
	}
	return text
}

func (s listed) use() string {
	switch {
	case s.Status != primitives.StatusRunning:
		return string(s.Status)
	case s.Ending:
		return "ending"
	case s.InUse:
		return "in use"
	case s.Orphan:
		return "orphan"
	case s.Kept:
		return "kept"
	}
	return string(s.Status)
}

// age returns the time since a moment, in its largest unit.
func age(since time.Time) string {
	d := max(time.Since(since), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// shortImage returns an image for display. It shortens an ID without a name as the docker
// command does.
func shortImage(image string) string {
	if id, ok := strings.CutPrefix(image, "sha256:"); ok && len(id) == 64 {
		return id[:12]
	}
	return image
}

func (f *listFlags) files(ctx context.Context, at place) (err error) {
	env, err := f.attach(ctx, at.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	opts := primitives.ListOptions{Pattern: f.pattern}
	if f.recursive {
		opts.Depth = -1
	}
	list, err := env.Primitive().List(ctx, firstOf(at.path, "."), opts)
	if errors.Is(err, primitives.ErrNotDirectory) {
		list = make([]primitives.FileInfo, 1)
		list[0], err = env.Primitive().Stat(ctx, at.path)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return printLines(f.app, list)
	}
	var rows [][]term.Span
	for _, i := range list {
		name := i.Path
		if i.Target != "" {
			name += " -> " + i.Target
		}
		rows = append(rows, term.Plains(i.Mode.String(), strconv.FormatInt(i.Size, 10), i.ModTime.Local().Format(time.DateTime), name))
	}
	return f.app.out.Table(rows...)
}

// printLines prints one JSON object a line.
func printLines[T any](a *app, list []T) error {
	enc := json.NewEncoder(a.out)
	for _, v := range list {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// dollars returns a cost for a table. Zero means that it is unknown: no price, or no report.
func dollars(usd float64) string {
	if usd <= 0 {
		return "-"
	}
	return fmt.Sprintf("$%.2f", usd)
}
