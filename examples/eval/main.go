// Command eval gives tasks to agents, two at a time, checks the results, and prints a table.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
)

// task is a prompt and a command that succeeds if the agent did it.
type task struct {
	Name, Prompt, Check string
	Timeout             time.Duration
}

var tasks = []task{
	{"file", "write a greeting", "grep -q hello greeting.txt", time.Minute},
	{"sum", "write 1+2 to sum.txt", "test $(cat sum.txt) = 3", time.Minute},
	{"slow", "wait for ever", "true", 2 * time.Second},
}

// scenario is what the scripted agent does. Replace it by other agents or models.
const scenario = `{"turns": [
	{"when": "greeting", "steps": [{"ask": {"write": {"path": "greeting.txt", "content": "hello\n"}}}]},
	{"when": "sum.txt", "steps": [{"write": {"path": "sum.txt", "content": "12\n"}}]},
	{"when": "wait", "steps": [{"delay_ms": 600000}]}
]}`

func main() {
	agent := environment.Agent{Name: "script", Config: json.RawMessage(scenario)}
	if err := run(context.Background(), agent); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, agent environment.Agent) error {
	pool, err := environment.NewPool(ctx, environment.Config{
		Sandbox:      environment.Sandbox{Type: "local"},
		Agent:        agent,
		OnPermission: environment.AllowAll,
		Pool:         environment.PoolConfig{Max: 2},
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	rows := make([]string, len(tasks))
	var all sync.WaitGroup
	for i, t := range tasks {
		all.Go(func() {
			res, err := attempt(ctx, pool, t)
			rows[i] = fmt.Sprintf("%s\t%s\t%.1f s\t%d\t%d", t.Name, verdict(err), res.Duration.Seconds(), res.Usage.TotalInput(), res.Usage.OutputTokens)
		})
	}
	all.Wait()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "TASK\tVERDICT\tTIME\tIN\tOUT")
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	return w.Flush()
}

// attempt runs one task in its own sandbox of the pool.
func attempt(ctx context.Context, pool *environment.Pool, t task) (res environment.Result, err error) {
	env, err := pool.Create(ctx, environment.Config{})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	if res, err = env.Run(ctx, t.Prompt); err != nil {
		return res, err
	}
	_, err = env.Exec(ctx, "sh", "-c", t.Check)
	return res, err
}

// verdict distinguishes an unsolved task from a task that could not be checked.
func verdict(err error) string {
	failed, unsolved := errors.AsType[*environment.ExitError](err)
	switch {
	case err == nil:
		return "solved"
	case unsolved:
		return fmt.Sprintf("wrong (status %d)", failed.Status.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "error: " + err.Error()
}
