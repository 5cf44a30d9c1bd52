package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// usage is the output of stats for one sandbox.
type usage struct {
	ID     string            `json:"id"`
	Type   string            `json:"type"`
	Status primitives.Status `json:"status"`
	Orphan bool              `json:"orphan,omitempty"`
	// Query is the state of the latest query, as in ls, and Waiting are its open questions.
	Query   string                `json:"query,omitempty"`
	Waiting []environment.Waiting `json:"waiting,omitempty"`
	// Models is the model usage of the agent.
	Models runnerscripts.Usage `json:"models"`
	// Usage is nil if the sandbox did not report it.
	*primitives.Usage

	at location
}

func (a *app) newStatsCmd() *cobra.Command {
	t := &target{app: a}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats [flags] [ID...]",
		Short: "Print what sandboxes use of their machine and of models",
		Long: `Print the processor time, the memory with its limit and the number of processes of
the sandboxes, or of some of them, and the tokens that their agents have used: those read from
a cache count, too. In a container every thread counts as a process, as it does for the limit
of them. "-" is unknown. STATUS and QUERY are those of 'envctl ls'.

What an agent does not say of its tokens is counted by the gateway; see docs/security.md. Both
are known where this user made the sandbox on this machine.

With --json each is one object a line: times in nanoseconds, memory in bytes, -1 for
what is unknown, and a memory_limit of 0 where there is none.`,
		Example: `  envctl stats
  envctl stats --json 3f2a | jq .memory`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			list, failed := t.usages(cmd.Context(), ids)
			if asJSON {
				return errors.Join(printLines(a, list), failed)
			}
			if len(list) == 0 && failed != nil {
				return failed
			}
			rows := [][]term.Span{term.Plains("ID", "TYPE", "STATUS", "QUERY", "CPU TIME", "MEMORY", "LIMIT", "PROCESSES", "TOKENS", "COST")}
			for _, u := range list {
				rows = append(rows, append(term.Plains(a.shortID(u.ID), u.Type, u.listed().use(), since(u.listed())), u.columns()...))
			}
			return errors.Join(a.out.Table(rows...), failed)
		},
	}
	t.flags(cmd)
	cmd.ValidArgsFunction = t.completeIDs(0)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// listed returns the sandbox as ls shows it.
func (u usage) listed() listed {
	info := u.at.info
	info.Waiting = u.Waiting
	return listed{info, u.Query}
}

// columns returns the figures as table cells.
func (u usage) columns() []term.Span {
	cpu, memory, limit, processes := "-", "-", "-", "-"
	if u.Usage != nil {
		if u.CPU >= 0 {
			cpu = u.CPU.Round(10 * time.Millisecond).String()
		}
		if u.Memory >= 0 {
			memory = units.BytesSize(float64(u.Memory))
		}
		switch {
		case u.MemoryLimit == 0:
			limit = "none"
		case u.MemoryLimit > 0:
			limit = units.BytesSize(float64(u.MemoryLimit))
		}
		if u.Processes >= 0 {
			processes = fmt.Sprint(u.Processes)
		}
	}
	tokens := "-"
	if n := u.Models.TotalInput() + u.Models.OutputTokens; n > 0 {
		tokens = fmt.Sprint(n)
	}
	return term.Plains(cpu, memory, limit, processes, tokens, dollars(u.Models.CostUSD))
}

// askedAtOnce is how many sandboxes are asked at the same time.
const askedAtOnce = 8

// usages returns the usage of the sandboxes with these IDs, or of all. The list comes with the
// errors of sandboxes that did not answer.
func (t *target) usages(ctx context.Context, ids []string) ([]usage, error) {
	cfg, err := t.load(ctx)
	if err != nil {
		return nil, err
	}
	found, failed := t.several(ctx, cfg.Sandbox, ids)
	list := make([]usage, len(found))
	errs := make([]error, len(found))
	var asking sync.WaitGroup
	turns := make(chan struct{}, askedAtOnce)
	for i, at := range found {
		list[i] = usage{
			ID: at.id, Type: at.sandbox.Type, Status: at.status, Orphan: at.info.Orphan, Models: at.models,
			Query: queryKnown(at.info), Waiting: at.info.Waiting, at: at,
		}
		if at.status != primitives.StatusRunning {
			continue
		}
		asking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			cfg := cfg
			cfg.Sandbox = at.sandbox
			errs[i] = list[i].read(ctx, cfg)
		})
	}
	asking.Wait()
	if len(ids) > 0 || ctx.Err() != nil {
		return list, errors.Join(append(errs, failed)...)
	}
	left, goneErrs := withoutEnded(ctx, cfg.Sandbox, list, errs)
	return left, errors.Join(append(goneErrs, failed)...)
}

// withoutEnded leaves out sandboxes that did not answer because they have ended or are ending.
func withoutEnded(ctx context.Context, chosen environment.Sandbox, list []usage, errs []error) (left []usage, failed []error) {
	if errors.Join(errs...) == nil {
		return list, nil
	}
	now, err := listAll(ctx, choices(chosen))
	for i, u := range list {
		lives := slices.ContainsFunc(now, func(s environment.SandboxInfo) bool {
			return s.ID == u.ID && s.Type == u.Type && s.Status == primitives.StatusRunning && !s.Ending
		})
		if errs[i] == nil || lives || err != nil {
			left, failed = append(left, u), append(failed, errs[i])
		}
	}
	return left, failed
}

// several returns the sandboxes with these IDs, or all.
func (t *target) several(ctx context.Context, chosen environment.Sandbox, ids []string) ([]location, error) {
	if len(ids) == 0 {
		return all(ctx, chosen)
	}
	var found []location
	var errs []error
	for _, id := range ids {
		at, err := find(ctx, chosen, id)
		if err == nil {
			found = append(found, at)
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// read reads the usage of a sandbox, if it can report it, and the state of its query.
func (u *usage) read(ctx context.Context, cfg environment.Config) (err error) {
	env, err := environment.Attach(ctx, cfg, u.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if u.Query == queryUnknown && u.at.info.Kept {
		u.Query, u.Waiting = queryIn(ctx, env)
	}
	now, err := primitives.ReadUsage(ctx, env.Primitive())
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the sandbox cannot report its usage
	}
	if err == nil {
		u.Usage = &now
	}
	return err
}
