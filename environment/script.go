package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// start runs a script in the sandbox and gives it its request, after before, which
// may be nil. The caller closes the process.
func (e *Environment) start(ctx context.Context, script string, request any, before func(*process) error) (*process, error) {
	if err := e.checkAgent(script); err != nil {
		return nil, err
	}
	args, err := e.command(ctx, script)
	if err != nil {
		return nil, &ScriptError{Script: script, Err: err}
	}
	line, err := json.Marshal(request)
	if err != nil {
		return nil, &ScriptError{Script: script, Err: fmt.Errorf("request: %w", err)}
	}
	// ctx bounds the start; the process outlives it and is ended by its close.
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, forget)
	proc, err := e.launch(life, script, args)
	starting()
	if err != nil {
		forget()
		return nil, e.diagnose(ctx, &ScriptError{Script: script, Err: err})
	}
	maxLine := e.maxLine
	if maxLine == 0 && script == runnerscripts.ReadTranscript {
		maxLine = runnerscripts.MaxTranscript
	}
	p := follow(ctx, script, proc, 0, maxLine, e.hide, forget)
	err = e.adopt(p)
	if err == nil && before != nil {
		err = before(p)
	}
	if err != nil {
		e.release(p)
		return nil, err
	}
	_ = p.queue(ctx, append(line, '\n')) // one that exits at once shows in how it ends
	return p, nil
}

func (e *Environment) launch(ctx context.Context, script string, args []string) (primitives.Process, error) {
	if e.durable(script) {
		p, err := e.startDurable(ctx, args)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	return e.prim.Exec(ctx, primitives.Command{Args: args, Env: e.environ(), Stdin: true})
}

// environ is the environment of the scripts beside the sandbox's own.
func (e *Environment) environ() []string {
	env := []string{"HOME=" + e.prim.Paths().Home}
	for key, value := range e.cfg.Agent.Env {
		env = append(env, key+"="+value)
	}
	slices.Sort(env[1:])
	return env
}

// run takes a script from its request to its result. Events on the way, which are of
// the transcript, go to emit, which may be nil; when it returns false the script is
// ended and the error is errStopped.
func (e *Environment) run(ctx context.Context, script string, request any, emit func(runnerscripts.Event) bool) (runnerscripts.Result, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return runnerscripts.Result{}, err
	}
	defer leave()
	p, err := e.start(ctx, script, request, nil)
	if err != nil {
		return runnerscripts.Result{}, err
	}
	defer e.release(p)
	if err := p.queue(ctx, nil); err != nil && !errors.Is(err, errScriptExited) {
		return runnerscripts.Result{}, err
	}
	var result *runnerscripts.Result
	for {
		select {
		case <-ctx.Done():
			return runnerscripts.Result{}, &ScriptError{Script: script, Err: context.Cause(ctx), Stderr: p.stderr.String()}
		case said, ok := <-p.events:
			ev := said.Event
			switch {
			case !ok:
				return e.finish(ctx, p, result)
			case ev.Type == runnerscripts.TypeResult:
				if result, err = decodeResult(ev); err != nil {
					return runnerscripts.Result{}, &ScriptError{Script: script, Err: err}
				}
			case emit == nil:
				e.logEvent(script, ev)
			case !emit(e.fromScript(ev, "", runnerscripts.SourceTranscript)):
				return runnerscripts.Result{}, errStopped
			}
		}
	}
}

var errStopped = errors.New("stopped by the caller")

// finish judges a script whose output has ended.
func (e *Environment) finish(ctx context.Context, p *process, result *runnerscripts.Result) (runnerscripts.Result, error) {
	failure := p.failure(result, nil)
	switch {
	case failure.Failure != nil || failure.Err != nil || !failure.Status.Success():
	case result == nil:
		failure.Err = errNoResult
	case !result.OK:
		failure.Err = errNoReason
	default:
		return *result, nil
	}
	return runnerscripts.Result{}, e.diagnose(ctx, failure)
}

var errNoReason = errors.New("the script's result is not ok and names no error")

func decodeResult(ev runnerscripts.Event) (*runnerscripts.Result, error) {
	r, err := runnerscripts.Payload[runnerscripts.Result](ev)
	if err != nil {
		return nil, fmt.Errorf("its result line is malformed: %w", err)
	}
	return &r, nil
}

// diagnose tells a script that failed from a sandbox that died under it.
func (e *Environment) diagnose(ctx context.Context, err *ScriptError) error {
	if err.Failure != nil || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	if e.isClosed() {
		err.Err = errors.Join(ErrClosed, err.Err)
		return err
	}
	if lost := e.lost(ctx); lost != nil {
		err.Err = errors.Join(err.Err, lost)
	}
	return err
}

// lost is gone where ctx may be done already: the sandbox has a time of its own to
// answer.
func (e *Environment) lost(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.probe)
	defer cancel()
	return e.gone(ctx)
}

// gone says why the sandbox takes no more calls, or nil.
func (e *Environment) gone(ctx context.Context) error {
	state, err := e.prim.Poll(ctx)
	switch {
	case errors.Is(err, primitives.ErrTerminated), errors.Is(err, primitives.ErrUnavailable):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
	case state.Status == primitives.StatusTerminated:
		return primitives.ErrTerminated
	case !state.Running():
		return fmt.Errorf("%w: its status is %s", primitives.ErrUnavailable, state.Status)
	}
	return nil
}

// fromScript makes the event that a script has printed during a query one of the
// host's, which says where it comes from and what it belongs to. A query ID of
// the script's own is not believed. What a script may not say becomes a log event.
func (e *Environment) fromScript(ev runnerscripts.Event, queryID string, source runnerscripts.Source) runnerscripts.Event {
	ev = e.hidden(ev)
	switch {
	case runnerscripts.HostOnly(ev.Type):
		ev = e.disowned(ev, "the sandbox sent an event of a type that only the host makes")
	case ev.QueryID != "" && queryID != "" && ev.QueryID != queryID:
		ev = e.disowned(ev, "the sandbox sent an event of another query")
	}
	ev.QueryID, ev.Source = queryID, source
	return e.enrich(ev)
}

// maxDisowned is how much of each part of an event the log event in its place shows:
// 4 KiB.
const maxDisowned = 4 << 10

// disowned returns the log event that stands for an event that is not believed.
func (e *Environment) disowned(ev runnerscripts.Event, why string) runnerscripts.Event {
	part := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxDisowned)], "") }
	data, err := json.Marshal(map[string]any{
		"type": part(string(ev.Type)), "source": part(e.hide.Text(string(ev.Source))), "query_id": part(e.hide.Text(ev.QueryID)),
		"payload": part(string(ev.Payload)), "length": len(ev.Payload),
	})
	if err == nil {
		data, err = json.Marshal(runnerscripts.Log{Level: "warn", Message: why, Data: data})
	}
	if err != nil {
		data = []byte("{}") // strings and numbers do not fail
	}
	ev.Type, ev.Payload = runnerscripts.TypeLog, data
	return ev
}

// enrich fills in what the environment knows of an event.
func (e *Environment) enrich(ev runnerscripts.Event) runnerscripts.Event {
	ev.Seq, ev.Index = 0, 0 // the session's and the query's to give
	ev.SessionID = e.cfg.SessionID
	if ev.ConversationID == "" {
		ev.ConversationID = runnerscripts.MainConversation
	}
	if ev.Time.IsZero() {
		ev.Time = now()
	}
	return ev
}

// event makes an event of the environment's own.
func (e *Environment) event(typ runnerscripts.EventType, queryID string, payload any) runnerscripts.Event {
	data, err := json.Marshal(payload)
	if err != nil {
		data = []byte("{}") // no payload type of this package can fail
	}
	return e.enrich(e.hidden(runnerscripts.Event{Type: typ, Payload: data, QueryID: queryID, Source: runnerscripts.SourceEnvironment}))
}

// logEvent logs a script's event that belongs to no query.
func (e *Environment) logEvent(script string, ev runnerscripts.Event) {
	eventlog.Write(e.log.With("script", script), e.hidden(ev))
}

// runnerName begins the name of the runner in the sandbox. What follows is a part
// of the sum of its content, so that another release never meets a stale one.
const runnerName = "envrunner-"

// runner is where the runner lies in the sandbox once it is known.
type runner struct {
	turn chan struct{} // holds a token while someone looks
	path string        // guarded by turn
}

// named returns what replaces a script; empty if nothing does.
func (s Scripts) named(script string) []string {
	return map[string][]string{
		runnerscripts.SetupSession:   s.SetupSession,
		runnerscripts.ExecuteQuery:   s.ExecuteQuery,
		runnerscripts.ReadTranscript: s.ReadTranscript,
	}[script]
}

// command returns what to run for a script.
func (e *Environment) command(ctx context.Context, script string) ([]string, error) {
	if own := e.cfg.Scripts.named(script); len(own) > 0 {
		return own, nil
	}
	select {
	case e.runner.turn <- struct{}{}:
		defer func() { <-e.runner.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if e.runner.path == "" {
		name, err := e.findRunner(ctx)
		if err != nil {
			return nil, err
		}
		e.runner.path = name
	}
	return []string{e.runner.path, script}, nil
}

// findRunner finds the runner for the sandbox's platform and makes it available
// there.
func (e *Environment) findRunner(ctx context.Context) (string, error) {
	can := e.prim.Capabilities()
	name, err := bundle.Path(ctx, bundle.Config{
		Explicit: e.cfg.Runner, OS: can.OS, Arch: can.Arch,
		Progress: e.cfg.tell,
	})
	if err != nil {
		return "", err
	}
	if holder, ok := e.prim.(interface{ Runner(file string) string }); ok {
		if at := holder.Runner(name); at != "" {
			return at, nil // its provider has put it there
		}
	}
	return e.installRunner(ctx, name)
}

// installRunner copies the runner into the sandbox unless it is there, and removes
// others.
func (e *Environment) installRunner(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return "", err
	}
	app := e.prim.Paths().App
	target := path.Join(app, runnerName+hex.EncodeToString(sum.Sum(nil)[:8]))
	info, err := e.prim.Stat(ctx, target)
	switch {
	case err == nil && info.Mode.IsRegular() && info.Size == size && info.Mode&0o100 != 0:
		return target, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("install the runner: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := e.prim.WriteFile(ctx, target, f, primitives.WriteOptions{Mode: 0o755}); err != nil {
		return "", fmt.Errorf("install the runner: %w", err)
	}
	e.log.Debug("installed the runner", "path", target)
	return target, e.removeRunners(ctx, app, path.Base(target))
}

// removeRunners removes the runners of other releases.
func (e *Environment) removeRunners(ctx context.Context, app, keep string) error {
	old, err := e.prim.List(ctx, app, primitives.ListOptions{Pattern: runnerName + "*"})
	if err != nil {
		return fmt.Errorf("install the runner: %w", err)
	}
	for _, info := range old {
		if info.Path == keep || !strings.HasPrefix(info.Path, runnerName) {
			continue
		}
		if err := e.prim.Remove(ctx, path.Join(app, info.Path), false); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("install the runner: %w", err)
		}
	}
	return nil
}
