package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// LogEntry is an entry in the log of a sandbox, for its operator.
type LogEntry struct {
	// Time is zero if it is unknown.
	Time time.Time `json:"time,omitzero"`
	// Source is "engine", "runner", "host" for what envctl adds, or "stderr" for the standard error of the runner and the
	// agent.
	Source  string `json:"source"`
	Message string `json:"message"`
	// OutOfMemory means that the kernel killed a process because the sandbox had no memory left.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// The sources of log entries.
const (
	logEngine = "engine"
	logRunner = "runner"
	logStderr = "stderr"
)

// Logs returns what happened to the agent in a kept sandbox, from the beginning: when its
// queries began and how they ended, what its runner reported, and its standard error. With
// follow, the sequence continues until the latest agent ends or ctx is done. If the sandbox
// stores none of this, Logs returns nothing.
func (e *Environment) Logs(ctx context.Context, follow bool) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		ctx, leave, err := e.enter(ctx)
		if err == nil {
			defer leave()
			err = e.logs(ctx, follow, func(entry LogEntry) bool {
				entry.Message = e.hide.Text(entry.Message)
				return yield(entry, nil)
			})
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(LogEntry{}, err)
		}
	}
}

func (e *Environment) logs(ctx context.Context, follow bool, emit func(LogEntry) bool) error {
	queries, err := e.prompts(ctx)
	if err != nil {
		return err
	}
	for i, q := range queries {
		if i > 0 && queries[i-1].Process == q.Process {
			continue // the process took several prompts
		}
		last := queries[len(queries)-1].Process == q.Process
		if err := e.logProcess(ctx, q.Process, follow && last, emit); err != nil {
			return err
		}
	}
	return nil
}

// logProcess reports the output of one execute-query.
func (e *Environment) logProcess(ctx context.Context, id string, follow bool, emit func(LogEntry) bool) error {
	proc, err := primitives.Reattach(ctx, e.prim, id, primitives.Offset{NoFollow: !follow})
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
	reading.Go(func() { readEvents(proc.Stdout(), e.maxLine, send) })
	reading.Go(func() { readLines(proc.Stderr(), send) })
	tasks.Go(func() { reading.Wait(); close(entries) })
	for {
		select {
		case entry, ok := <-entries:
			switch {
			case !ok && !follow && !hasExited(ctx, proc):
				return nil
			case !ok:
				return e.logEnd(ctx, proc, emit)
			case !emit(entry):
				return errStopped
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
func (e *Environment) logEnd(ctx context.Context, proc primitives.Process, emit func(LogEntry) bool) error {
	status, err := proc.Wait(ctx)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	if !status.Success() && !emit(LogEntry{Source: logRunner, Message: "the runner " + describe(status)}) {
		return errStopped
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
			return answered(done)
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
		if r, err := decodeResult(ev); err == nil && r.Error != nil {
			return fmt.Sprintf("the runner gave up (%s): %s", r.Error.Code, r.Error.Message)
		}
	}
	return ""
}

// answered describes how a permission request ended.
func answered(done runnerscripts.PermissionResolved) string {
	text := done.Kind.Effect()
	if text == "" {
		text = "withdrawn"
	}
	if done.Reason != "" && done.Reason != reasonAnswered {
		text += " (" + done.Reason + ")"
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

// History returns what the backend itself knows of a sandbox: when it was started, that it ran
// out of memory, how it ended. It also works for a while after the sandbox is gone. For an
// unknown sandbox the error is fs.ErrNotExist. A type without history returns nothing.
func History(ctx context.Context, s Sandbox, id string) ([]LogEntry, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	h, ok := p.(primitives.Historian)
	if !ok {
		return nil, nil
	}
	found, err := h.History(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("history of the sandbox: %w", err)
	}
	entries := make([]LogEntry, 0, len(found))
	for _, f := range found {
		entries = append(entries, LogEntry{f.Time, logEngine, f.Message, f.OutOfMemory})
	}
	return entries, nil
}

// reportDelay is how long the backend may take to report that memory ran out, after the process
// has ended.
const reportDelay = 200 * time.Millisecond

// outOfMemory reports whether the sandbox ran out of memory after since. What was killed knows only
// that it was killed.
func (e *Environment) outOfMemory(ctx context.Context, since time.Time) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.probe)
	defer cancel()
	for try := range 2 {
		if try > 0 {
			timer := time.NewTimer(reportDelay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return false
			}
		}
		entries, err := History(ctx, e.cfg.Sandbox, e.ID())
		if err != nil || len(entries) == 0 {
			return false // keep the failure as it is
		}
		for _, entry := range entries {
			if entry.OutOfMemory && entry.Time.After(since) {
				return true
			}
		}
	}
	return false
}

// explain adds to a failure that memory ran out, if it did, and reports whether it did.
func (e *Environment) explain(ctx context.Context, failed *runnerscripts.QueryFailed, since time.Time) bool {
	if failed.Code != runnerscripts.FailAgent || !e.outOfMemory(ctx, since) {
		return false
	}
	failed.Message = fmt.Sprintf("memory ran out, and the kernel ended the agent (%s); %s", failed.Message, e.moreMemory(ctx))
	return true
}

// moreMemory returns the advice for a sandbox that ran out of memory.
func (e *Environment) moreMemory(ctx context.Context) string {
	if u, err := primitives.ReadUsage(context.WithoutCancel(ctx), e.prim); err == nil && u.MemoryLimit > 0 {
		return fmt.Sprintf("give the sandbox more than %d MiB", u.MemoryLimit>>20)
	}
	return "give the sandbox more"
}

// noteTool remembers when a tool of the agent was killed, or may have been: not every agent reports
// how its commands end.
func (r *queryRun) noteTool(ev runnerscripts.Event) {
	if r.killed || !bytes.Contains(ev.Payload, []byte(runnerscripts.ToolFailed)) {
		return
	}
	call, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	r.killed = err == nil && call.Status == runnerscripts.ToolFailed && (call.ExitCode == 0 || call.ExitCode == 128+int(unix.SIGKILL))
}

// warnOutOfMemory reports that a tool was killed because the sandbox ran out of memory.
func (r *queryRun) warnOutOfMemory(ctx context.Context) {
	if !r.killed || !r.env.outOfMemory(ctx, r.began) {
		return
	}
	r.killed = false
	w := warning("memory ran out in the sandbox during the query, and the kernel killed a process; " + r.env.moreMemory(ctx))
	w.Data = json.RawMessage(`{"out_of_memory":true}`)
	r.env.log.Warn(w.Message, eventlog.Query, r.query.ID)
	r.report(r.env.event(runnerscripts.TypeLog, r.query.ID, w))
}
