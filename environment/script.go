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

// start runs a script in the sandbox and sends it its request. If before is not nil, start calls
// it first. The caller closes the process.
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
	// ctx bounds the start only; the process ends with its close.
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
	_ = p.queue(ctx, append(line, '\n')) // a script that exits at once shows an error at its end
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

// environ returns the variables of the scripts beside those of the sandbox.
func (e *Environment) environ() []string {
	env := []string{"HOME=" + e.prim.Paths().Home}
	for key, value := range e.cfg.Agent.Env {
		env = append(env, key+"="+value)
	}
	slices.Sort(env[1:])
	return env
}

// run runs a script from its request to its result. It passes the events of the transcript to
// emit, which may be nil. If emit returns false, run ends the script and returns errStopped.
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

// finish returns the result or the error of a script whose output has ended.
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

// diagnose adds the sandbox's error to that of a script if the sandbox died.
func (e *Environment) diagnose(ctx context.Context, err *ScriptError) error {
	if err.Failure != nil || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	if e.isClosed() {
		err.Err = errors.Join(ErrClosed, err.Err)
		return err
	}
	if lost := e.probeAlive(ctx); lost != nil {
		err.Err = errors.Join(err.Err, lost)
	}
	return err
}

// probeAlive is checkAlive for a ctx that may be done already: the sandbox gets a timeout of its
// own to answer.
func (e *Environment) probeAlive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.probe)
	defer cancel()
	return e.checkAlive(ctx)
}

// checkAlive returns why the sandbox accepts no more calls; nil if it does.
func (e *Environment) checkAlive(ctx context.Context) error {
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

// fromScript turns an event that a script printed during a query into one of the host. It sets
// the source and what the event belongs to, and does not trust the script's own query ID. An
// event that a script may not send becomes a log event.
func (e *Environment) fromScript(ev runnerscripts.Event, queryID string, source runnerscripts.Source) runnerscripts.Event {
	ev = e.redactEvent(ev)
	switch {
	case runnerscripts.HostOnly(ev.Type):
		ev = e.untrustedAsLog(ev, "the sandbox sent an event of a type that only the host makes")
	case ev.QueryID != "" && queryID != "" && ev.QueryID != queryID:
		ev = e.untrustedAsLog(ev, "the sandbox sent an event of another query")
	}
	ev.QueryID, ev.Source = queryID, source
	return e.enrich(ev)
}

// maxUntrusted limits how much of each part of a refused event its log event shows: 4 KiB.
const maxUntrusted = 4 << 10

// untrustedAsLog returns the log event that replaces an untrusted event.
func (e *Environment) untrustedAsLog(ev runnerscripts.Event, why string) runnerscripts.Event {
	part := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxUntrusted)], "") }
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

// enrich sets the fields that the environment knows.
func (e *Environment) enrich(ev runnerscripts.Event) runnerscripts.Event {
	ev.Seq, ev.Index = 0, 0 // the session sets Seq, the query sets Index
	ev.SessionID = e.cfg.SessionID
	if ev.ConversationID == "" {
		ev.ConversationID = runnerscripts.MainConversation
	}
	if ev.Time.IsZero() {
		ev.Time = now()
	}
	return ev
}

// event returns a new event of the environment itself.
func (e *Environment) event(typ runnerscripts.EventType, queryID string, payload any) runnerscripts.Event {
	data, err := json.Marshal(payload)
	if err != nil {
		data = []byte("{}") // no payload type of this package can fail
	}
	return e.enrich(e.redactEvent(runnerscripts.Event{Type: typ, Payload: data, QueryID: queryID, Source: runnerscripts.SourceEnvironment}))
}

// logEvent logs a script's event that belongs to no query.
func (e *Environment) logEvent(script string, ev runnerscripts.Event) {
	eventlog.Write(e.log.With("script", script), e.redactEvent(ev))
}

// runnerName is the prefix of the runner's file name in the sandbox. The rest is part of the
// SHA-256 of its content, so that a release never runs the runner of another one.
const runnerName = "envrunner-"

// runner is the path of the runner in the sandbox, once it is known.
type runner struct {
	turn chan struct{} // holds a token while a call looks for the runner
	path string        // guarded by turn
}

// named returns the command that replaces a script; empty for none.
func (s Scripts) named(script string) []string {
	return map[string][]string{
		runnerscripts.SetupSession:   s.SetupSession,
		runnerscripts.ExecuteQuery:   s.ExecuteQuery,
		runnerscripts.ReadTranscript: s.ReadTranscript,
	}[script]
}

// command returns the command that runs a script.
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

// findRunner finds the runner for the sandbox's platform, installs it in the sandbox if need be,
// and returns its path there.
func (e *Environment) findRunner(ctx context.Context) (string, error) {
	can := e.prim.Capabilities()
	name, err := bundle.Path(ctx, bundle.Config{
		Explicit: e.cfg.Runner, OS: can.OS, Arch: can.Arch,
		Progress: e.cfg.tell,
	})
	if err != nil {
		return "", err
	}
	if at := primitives.RunnerPath(e.prim, name); at != "" {
		return at, nil
	}
	return e.installRunner(ctx, name)
}

// installRunner copies the runner into the sandbox unless it is there, and removes others.
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
