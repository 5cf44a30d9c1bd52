package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// point is a checkpoint of a session, as in ID@3, or its current state, as in ID.
type point struct {
	id     string
	number int // zero means the current state
}

func parsePoint(arg string) (point, error) {
	id, number, given := strings.Cut(arg, "@")
	if !given {
		return point{id: arg}, nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		return point{}, usagef("%q names no checkpoint; give a number of 'envctl log %s', as in %s@3", arg, firstOf(id, "ID"), id)
	}
	return point{id, n}, nil
}

// checkpointFlags are the flags of commands for stored sessions.
type checkpointFlags struct {
	target
	asJSON bool
	copies int
}

// opened opens a stored session, calls use with it and closes it.
func (f *checkpointFlags) opened(ctx context.Context, id string, use func(st store.Store, s *session.AgentSession) error) error {
	return f.app.changeSession(ctx, id, func(st *sqlite.Store, rec store.Record) error {
		given, err := f.load(ctx)
		if err != nil {
			return err
		}
		cfg, err := session.Stored(ctx, st, rec.ID)
		if err != nil {
			return err
		}
		cfg.Environment.Agent.Env, cfg.Environment.Logger = given.Agent.Env, given.Logger
		// Permission requests wait for a client that attaches.
		cfg.Environment.OnPermission = environment.AnswerLater
		s, err := session.Open(ctx, cfg)
		if err != nil {
			return err
		}
		return errors.Join(use(st, s), s.Close())
	})
}

func (a *app) newLogCmd() *cobra.Command {
	f := &checkpointFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "log [flags] ID",
		Short: "List the checkpoints of a session",
		Long: `List the checkpoints of a session, oldest first: the points to which its files and its
conversation can return. One is taken after each prompt, and each minute while one runs; of
these, the files of old ones are removed. FROM is the one that it followed, which after 'envctl
rewind' is not the one above. A new sandbox starts from the one with a star.`,
		Example: `  envctl log 3f2a
  envctl log --json 3f2a | jq .number`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if a.server != "" {
				return f.listServed(ctx, args[0])
			}
			return a.withSession(ctx, args[0], func(st *sqlite.Store, rec store.Record) error {
				state, err := session.ReadState(ctx, st, rec.ID)
				if err != nil {
					return err
				}
				return f.list(state)
			})
		},
	}
	f.log.flags(cmd)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	cmd.ValidArgsFunction = a.completeSessions(1)
	return cmd
}

func (f *checkpointFlags) list(state session.State) error {
	if f.asJSON {
		return printLines(f.app, state.Checkpoints)
	}
	rows := [][]term.Span{term.Plains(" ", "CHECKPOINT", "AFTER", "FROM", "AGE", "FILES", "AGENT", "PROMPT")}
	for _, c := range state.Checkpoints {
		here, files := " ", "-"
		if c.Number == state.Checkpoint {
			here = "*"
		}
		switch {
		case c.Pruned:
			files = "removed"
		case c.FilesOf > 0:
			files = fmt.Sprintf("of %d", c.FilesOf)
		case c.Stale != "":
		case c.Workspace != "":
			files = strconv.Itoa(c.Files)
		}
		from := "-"
		if c.Parent > 0 {
			from = strconv.Itoa(c.Parent)
		}
		rows = append(rows, term.Plains(here, strconv.Itoa(c.Number), string(c.Reason), from, age(c.Time), files, firstOf(c.Agent, "-"), firstOf(c.Prompt, "-")))
	}
	return f.app.out.Table(rows...)
}

func (a *app) newRewindCmd() *cobra.Command {
	f := &checkpointFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "rewind [flags] ID@CHECKPOINT",
		Short: "Return a session to a checkpoint",
		Long: `Return the files and the conversation of a session to a checkpoint of 'envctl log'. Its
sandbox ends; the next prompt makes one from the checkpoint. Nothing is lost: what the sandbox
had becomes a checkpoint first.`,
		Example: `  envctl log 3f2a
  envctl rewind 3f2a@3
  envctl attach 3f2a "Try it without the cache"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			to, err := parsePoint(args[0])
			if err == nil && to.number == 0 {
				err = usagef("%q has no checkpoint; give one of 'envctl log %[1]s', as in %[1]s@3", args[0])
			}
			if err != nil {
				return err
			}
			if a.server != "" {
				return f.rewindServed(ctx, to)
			}
			return f.opened(ctx, to.id, func(_ store.Store, s *session.AgentSession) error {
				if err := s.Rewind(ctx, to.number); err != nil {
					return err
				}
				state, err := s.State(ctx)
				if err != nil {
					return err
				}
				return f.app.err.Row(term.Plain(rewound(state) + "; go on with 'envctl attach " + f.app.shortSession(s.ID()) + " PROMPT'"))
			})
		},
	}
	f.log.flags(cmd)
	cmd.ValidArgsFunction = a.completeSessions(1)
	return cmd
}

// rewound returns the message about the checkpoint of a rewound session, and about later
// checkpoints.
func rewound(s session.State) string {
	text := fmt.Sprintf("the next prompt goes on from checkpoint %d", s.Checkpoint)
	if n := len(s.Checkpoints); n > 0 && s.Checkpoints[n-1].Number != s.Checkpoint {
		text += fmt.Sprintf("; what came after it is still there, up to checkpoint %d", s.Checkpoints[n-1].Number)
	}
	return text
}

func (a *app) newForkCmd() *cobra.Command {
	f := &checkpointFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "fork [flags] ID[@CHECKPOINT]",
		Short: "Make sessions that go separate ways from here",
		Long: `Make sessions that have the files and the conversation of another one, as they are now or
were at a checkpoint, and print their IDs. Each goes its own way from there: give it a prompt
with 'envctl attach'. With --agent another agent goes on in them.`,
		Example: `  envctl fork 3f2a
  envctl fork -n 4 3f2a@3
  envctl fork --agent codex 3f2a@3`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.fork(cmd.Context(), args[0]) },
	}
	f.log.flags(cmd)
	f.agentFlag(cmd)
	f.envFlag(cmd)
	cmd.Flags().IntVarP(&f.copies, "copies", "n", 1, "how many")
	cmd.ValidArgsFunction = a.completeSessions(1)
	return cmd
}

func (f *checkpointFlags) fork(ctx context.Context, arg string) error {
	from, err := parsePoint(arg)
	if err == nil && f.copies < 1 {
		err = usagef("--copies: %d sessions make no sense; ask for at least one", f.copies)
	}
	if err != nil {
		return err
	}
	if f.app.server != "" {
		return f.forkServed(ctx, from)
	}
	return f.opened(ctx, from.id, func(st store.Store, s *session.AgentSession) error {
		var made []*session.AgentSession
		if from.number == 0 {
			made, err = s.Fork(ctx, f.copies)
		} else {
			made, err = s.ForkFrom(ctx, from.number, f.copies)
		}
		var errs []error
		for _, c := range made {
			err := c.Close()
			if err == nil && f.named != "" {
				err = f.handOver(ctx, st, c.ID())
			}
			if err != nil {
				errs = append(errs, err, c.Destroy(context.WithoutCancel(ctx)))
				continue
			}
			errs = append(errs, f.app.out.Row(term.Plain(f.app.shortSession(c.ID()))))
		}
		return errors.Join(append(errs, err)...)
	})
}

// handOver changes the agent of a session.
func (f *checkpointFlags) handOver(ctx context.Context, st store.Store, id string) error {
	cfg, err := session.Stored(ctx, st, id)
	if err != nil {
		return err
	}
	given, err := f.load(ctx)
	if err != nil {
		return err
	}
	if err := f.overrideStored(&cfg.Environment, given); err != nil {
		return err
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return err
	}
	return s.Close()
}

func (a *app) newCompareCmd() *cobra.Command {
	f := &checkpointFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "compare [flags] ID...",
		Short: "Compare what sessions have made of the same beginning",
		Long: `Print for each session what it has changed from its first to its present checkpoint, what it
has used and what it was asked last: which of the sessions of 'envctl fork' did best. What a
fork has used is without the past that it shares.`,
		Example: `  envctl compare 3f2a 77b0 91cc
  envctl diff 77b0@1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error { return f.compare(cmd.Context(), ids) },
	}
	f.log.flags(cmd)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	cmd.ValidArgsFunction = a.completeSessions(-1)
	return cmd
}

// comparison is the output of compare for one session.
type comparison struct {
	ID           string   `json:"id"`
	Agent        string   `json:"agent"`
	Status       string   `json:"status"`
	Changed      *changed `json:"changed,omitempty"` // nil if the files are not stored
	InputTokens  int64    `json:"input_tokens"`
	OutputTokens int64    `json:"output_tokens"`
	CostUSD      float64  `json:"cost_usd"`
	Prompt       string   `json:"prompt"` // the last one
}

// changed counts the changes of a session.
type changed struct {
	Files   int `json:"files"`
	Added   int `json:"added"` // lines
	Removed int `json:"removed"`
}

func (f *checkpointFlags) compare(ctx context.Context, ids []string) error {
	var list []comparison
	for _, id := range ids {
		if f.app.server != "" {
			c, err := f.app.compareServed(ctx, id)
			if err != nil {
				return err
			}
			list = append(list, c)
			continue
		}
		err := f.app.withSession(ctx, id, func(st *sqlite.Store, rec store.Record) error {
			c, err := compareOne(ctx, st, rec.ID)
			list = append(list, c)
			return err
		})
		if err != nil {
			return err
		}
	}
	if f.asJSON {
		return printLines(f.app, list)
	}
	rows := [][]term.Span{term.Plains("ID", "AGENT", "STATUS", "FILES", "LINES", "TOKENS", "COST", "LAST PROMPT")}
	for _, c := range list {
		files, lines := "-", "-"
		if c.Changed != nil {
			files, lines = strconv.Itoa(c.Changed.Files), fmt.Sprintf("+%d -%d", c.Changed.Added, c.Changed.Removed)
		}
		rows = append(rows, term.Plains(f.app.shortSession(c.ID), c.Agent, firstOf(c.Status, "-"), files, lines,
			strconv.FormatInt(c.InputTokens+c.OutputTokens, 10), dollars(c.CostUSD), firstOf(c.Prompt, "-")))
	}
	return f.app.out.Table(rows...)
}

func compareOne(ctx context.Context, st *sqlite.Store, id string) (comparison, error) {
	rec, err := st.Load(ctx, id)
	if err != nil {
		return comparison{}, err
	}
	state, err := session.ReadState(ctx, st, id)
	if err != nil {
		return comparison{}, err
	}
	return compareState(id, sessionsNow(ctx, st, rec)[0].Status, state, changesOf{
		func() ([]environment.Change, error) { return session.ReadChanges(ctx, st, id, 1, 0) },
		func(w io.Writer) error { return session.ReadPatch(ctx, st, id, w, 1, 0) },
	})
}

// changesOf reads what a session has changed from its first to its present checkpoint.
type changesOf struct {
	list  func() ([]environment.Change, error)
	patch func(w io.Writer) error
}

func compareState(id, status string, state session.State, of changesOf) (comparison, error) {
	c := comparison{
		ID: id, Agent: state.Agent, Status: status,
		InputTokens:  state.Usage.TotalInput() - state.Inherited.TotalInput(),
		OutputTokens: state.Usage.OutputTokens - state.Inherited.OutputTokens,
		CostUSD:      state.Usage.CostUSD - state.Inherited.CostUSD,
	}
	if n := len(state.Checkpoints); n > 0 {
		c.Prompt = state.Checkpoints[n-1].Prompt
	}
	changes, err := of.list()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return c, nil // its files are not stored
	}
	if err != nil {
		return c, err
	}
	var lines lineCounter
	if err := of.patch(&lines); err != nil {
		return c, err
	}
	c.Changed = &changed{len(changes), lines.added, lines.removed}
	return c, nil
}

// lineCounter counts the lines that a patch adds and removes.
type lineCounter struct {
	rest           []byte // the start of an incomplete line
	hunk           bool   // after a line that starts a hunk
	added, removed int
}

// Write implements io.Writer.
func (l *lineCounter) Write(p []byte) (int, error) {
	text := append(l.rest, p...)
	for {
		line, rest, ended := bytes.Cut(text, []byte("\n"))
		if !ended {
			l.rest = bytes.Clone(text[:min(len(text), 16)]) // the start of a line is enough
			return len(p), nil
		}
		l.line(line)
		text = rest
	}
}

func (l *lineCounter) line(line []byte) {
	switch {
	case bytes.HasPrefix(line, []byte("diff --git ")):
		l.hunk = false
	case bytes.HasPrefix(line, []byte("@@ ")):
		l.hunk = true
	case l.hunk && bytes.HasPrefix(line, []byte("+")):
		l.added++
	case l.hunk && bytes.HasPrefix(line, []byte("-")):
		l.removed++
	}
}

// diffCheckpoints prints the differences between two checkpoints of a session.
func (f *diffFlags) diffCheckpoints(ctx context.Context, from point, to int) error {
	return f.app.withSession(ctx, from.id, func(st *sqlite.Store, rec store.Record) error {
		if !f.stat && !f.asJSON {
			return session.ReadPatch(ctx, st, rec.ID, f.app.out, from.number, to)
		}
		changes, err := session.ReadChanges(ctx, st, rec.ID, from.number, to)
		if err != nil {
			return err
		}
		return f.print(changes)
	})
}

// print prints the paths of changes.
func (f *diffFlags) print(changes []environment.Change) error {
	if f.asJSON {
		return printLines(f.app, changes)
	}
	for _, c := range changes {
		if err := f.app.out.Row(term.Plain(fmt.Sprintf("%-8s %s", c.Kind, c.Path))); err != nil {
			return err
		}
	}
	return nil
}
