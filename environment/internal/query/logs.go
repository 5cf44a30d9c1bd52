package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// LogEntry is an entry in the log of a sandbox, as environment.LogEntry describes it.
type LogEntry struct {
	Time        time.Time
	Source      string
	Message     string
	OutOfMemory bool
}

// The sources of log entries.
const (
	logRunner = "runner"
	logStderr = "stderr"
)

// Logs yields what happened to the agent in a kept sandbox, as environment.Logs describes.
func (q *Queries) Logs(ctx context.Context, follow bool, yield func(LogEntry, error) bool) {
	ctx, leave, err := q.Scripts.Enter(ctx)
	if err == nil {
		defer leave()
		err = q.logs(ctx, follow, func(entry LogEntry) bool {
			entry.Message = q.events.Hide.Text(entry.Message)
			return yield(entry, nil)
		})
	}
	if err != nil && !errors.Is(err, script.ErrStopped) {
		yield(LogEntry{}, err)
	}
}

func (q *Queries) logs(ctx context.Context, follow bool, emit func(LogEntry) bool) error {
	prompts, err := q.prompts(ctx)
	if err != nil {
		return err
	}
	for i, p := range prompts {
		if i > 0 && prompts[i-1].Process == p.Process {
			continue // the process took several prompts
		}
		last := prompts[len(prompts)-1].Process == p.Process
		if err := q.logProcess(ctx, p.Process, follow && last, emit); err != nil {
			return err
		}
	}
	return nil
}

// logProcess reports the output of one execute-query.
func (q *Queries) logProcess(ctx context.Context, id string, follow bool, emit func(LogEntry) bool) error {
	proc, err := primitives.Reattach(ctx, q.Scripts.Sandbox, id, primitives.Offset{NoFollow: !follow})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil // its output was removed
	}
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	entries := make(chan LogEntry)
	done := make(chan struct{})
	var tasks sync.WaitGroup
	defer func() {
		close(done)
		_ = proc.Close() // leaves the process running, and ends the reading
		tasks.Wait()
	}()
	send := func(entry LogEntry) bool {
		select {
		case entries <- entry:
			return true
		case <-done:
			return false
		}
	}
	var reading sync.WaitGroup
	reading.Go(func() { readEvents(proc.Stdout(), q.Scripts.MaxLine, send) })
	reading.Go(func() { readLines(proc.Stderr(), send) })
	tasks.Go(func() { reading.Wait(); close(entries) })
	for {
		select {
		case entry, ok := <-entries:
			switch {
			case !ok && !follow && !hasExited(ctx, proc):
				return nil
			case !ok:
				return q.logEnd(ctx, proc, emit)
			case !emit(entry):
				return script.ErrStopped
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hasExited reports, without waiting, whether a process has exited. The signal changes nothing
// in a running process.
func hasExited(ctx context.Context, proc primitives.Process) bool {
	return errors.Is(proc.Signal(ctx, primitives.SIGCONT), os.ErrProcessDone)
}

// logEnd reports how a process ended, unless it succeeded.
func (q *Queries) logEnd(ctx context.Context, proc primitives.Process, emit func(LogEntry) bool) error {
	status, err := proc.Wait(ctx)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	if !status.Success() && !emit(LogEntry{Source: logRunner, Message: "the runner " + status.String()}) {
		return script.ErrStopped
	}
	return nil
}

// readEvents sends the events that belong in a log.
func readEvents(r io.Reader, maxLine int, send func(LogEntry) bool) {
	dec := runnerscripts.NewDecoder(r, maxLine)
	for {
		ev, err := dec.Next()
		if err != nil {
			return // the end, or the reader was closed
		}
		entry := LogEntry{Time: ev.Time, Source: logRunner, Message: logMessage(ev)}
		if l, err := runnerscripts.Payload[runnerscripts.Log](ev); ev.Type == runnerscripts.TypeLog && err == nil && l.Stream != "" {
			entry.Source, entry.Message = l.Stream, l.Message
		}
		if entry.Message != "" && !send(entry) {
			return
		}
	}
}

// logMessage returns a line that describes an event; empty if the event belongs in no log.
func logMessage(ev runnerscripts.Event) string {
	switch ev.Type {
	case runnerscripts.TypeQueryStarted:
		if q, err := runnerscripts.Payload[runnerscripts.QueryStarted](ev); err == nil {
			prompt, _, more := strings.Cut(strings.TrimSpace(q.Prompt), "\n")
			if more {
				prompt += " ..."
			}
			return fmt.Sprintf("query %s began: %s", ev.QueryID, prompt)
		}
	case runnerscripts.TypeQueryCompleted:
		if q, err := runnerscripts.Payload[runnerscripts.QueryCompleted](ev); err == nil {
			return fmt.Sprintf("query %s ended (%s) after %v", ev.QueryID, q.StopReason, time.Duration(q.DurationMS)*time.Millisecond)
		}
	case runnerscripts.TypeQueryFailed:
		if q, err := runnerscripts.Payload[runnerscripts.QueryFailed](ev); err == nil {
			return fmt.Sprintf("query %s failed (%s): %s", ev.QueryID, q.Code, q.Message)
		}
	case runnerscripts.TypePermissionRequest:
		if w, err := waitingFor(ev); err == nil {
			return fmt.Sprintf("query %s waits for an answer: %s", ev.QueryID, w.Title)
		}
	case runnerscripts.TypePermissionResolved:
		if done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev); err == nil {
			return answerText(done)
		}
	case runnerscripts.TypeLog:
		if l, err := runnerscripts.Payload[runnerscripts.Log](ev); err == nil {
			return l.Level + ": " + l.Message
		}
	case runnerscripts.TypeError:
		if e, err := runnerscripts.Payload[runnerscripts.ErrorInfo](ev); err == nil {
			return fmt.Sprintf("error (%s): %s", e.Code, e.Message)
		}
	case runnerscripts.TypeResult:
		if r, err := script.DecodeResult(ev); err == nil && r.Error != nil {
			return fmt.Sprintf("the runner gave up (%s): %s", r.Error.Code, r.Error.Message)
		}
	}
	return ""
}

// answerText describes how a permission request ended.
func answerText(done runnerscripts.PermissionResolved) string {
	text := done.Kind.Effect()
	if text == "" {
		text = "withdrawn"
	}
	if done.Reason != "" && done.Reason != runnerscripts.ReasonAnswered {
		text += " (" + done.Reason + ")"
	}
	if done.By != "" {
		text += " by " + done.By
	}
	return "the question was answered: " + text
}

// readLines sends lines of text.
func readLines(r io.Reader, send func(LogEntry) bool) {
	lines := runnerscripts.NewLineReader(r, 0)
	for {
		line, err := lines.Next()
		if err != nil || !send(LogEntry{Source: logStderr, Message: strings.ToValidUTF8(string(line), "\uFFFD")}) {
			return
		}
	}
}
