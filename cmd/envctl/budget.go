package main

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// budgetFlags are the flags that limit, record and replay the use of models.
type budgetFlags struct {
	budget         string
	timeout        time.Duration
	record, replay string
}

func (f *budgetFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.budget, "budget", "", `end when the models have used so much: 2usd, 500000tokens or 100requests, or several with commas`)
	fl.StringVar(&f.record, "record", "", "add the calls of models and their answers to this file, without keys")
	fl.StringVar(&f.replay, "replay", "", "answer the calls of models from this file of --record: needs neither a key nor a network")
	fl.DurationVar(&f.timeout, "timeout", 0, "end a prompt after this time, as in 90s or 10m (default no limit)")
}

// apply overrides the configuration with the flags. The budget covers all prompts; the timeout
// applies to each.
func (f *budgetFlags) apply(cfg *environment.Config) error {
	if f.timeout < 0 {
		return usagef("--timeout: %v is negative; give a positive duration, such as 90s or 10m, or 0 for no limit", f.timeout)
	}
	if f.timeout > 0 {
		cfg.Budget.Query.Time = f.timeout
	}
	for _, file := range []struct {
		flag    string
		setting *string
	}{{f.record, &cfg.Record}, {f.replay, &cfg.Replay}} {
		if file.flag == "" {
			continue
		}
		path, err := filepath.Abs(file.flag)
		if err != nil {
			return err
		}
		*file.setting = path
	}
	if f.budget == "" {
		return nil
	}
	for text := range strings.SplitSeq(f.budget, ",") {
		if err := parseBudget(text, &cfg.Budget.Session); err != nil {
			return err
		}
	}
	return nil
}

// parseBudget parses a number with its unit into l.
func parseBudget(text string, l *environment.Limits) error {
	number := strings.TrimRight(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz")
	unit := strings.ToLower(text)[len(number):]
	amount, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	whole := amount == float64(int64(amount))
	switch {
	case err != nil || amount <= 0:
	case unit == "usd":
		l.USD = amount
		return nil
	case (unit == "tokens" || unit == "token") && whole:
		l.Tokens = int64(amount)
		return nil
	case (unit == "requests" || unit == "request") && whole:
		l.Requests = int64(amount)
		return nil
	}
	return usagef("--budget: %q is no budget; give one such as 2usd, 500000tokens or 100requests", text)
}

// overTime reports whether a query failed because of its timeout.
func overTime(err error) bool {
	q, ok := errors.AsType[*environment.QueryError](err)
	return ok && q.Failure.Code == runnerscripts.FailTimeout
}
