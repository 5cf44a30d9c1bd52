package coordinator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// What a hook wants.
const (
	actionContinue = "continue"
	actionBlock    = "block"
)

// defaultHookTime is how long a run waits for its hook, and maxHookSeconds, a year, the longest time that a hook may set.
const (
	defaultHookTime = 300 * time.Second
	maxHookSeconds  = 365 * 24 * 60 * 60
)

var errHookLate = errors.New("it took too long")

// A hook is a run of an agent like others: it waits for a runner in the same queue, and the run that it decides about stays
// pending meanwhile. So no request waits for a hook, and the runner that takes the hook can be the one that takes the run.

// startHook adds the run of the hook on_run_start, for which r then waits.
func (t *tx) startHook(r *run) {
	if r.Internal || r.Blueprint == nil || r.Blueprint.Hooks.OnRunStart == nil {
		return
	}
	h := r.Blueprint.Hooks.OnRunStart
	hook, err := t.addHook(r, *h, map[string]any{})
	if err != nil {
		t.hookFailed(r, err)
		return
	}
	r.Hook, hook.HookOf = hook.ID, r.ID
	t.wait(r, r.fullWait())
}

// fullWait returns how long a pending run waits for its hook, or without one for a runner.
func (r *run) fullWait() time.Duration {
	if r.Hook == "" {
		return matchWithin
	}
	return cmp.Or(time.Duration(r.Blueprint.Hooks.OnRunStart.TimeoutSeconds)*time.Second, defaultHookTime)
}

// finishHook adds the run of the hook on_run_finish, for which no run waits.
func (t *tx) finishHook(r *run) {
	if r.Internal || r.Blueprint == nil || r.Blueprint.Hooks.OnRunFinish == nil {
		return
	}
	if _, err := t.addHook(r, *r.Blueprint.Hooks.OnRunFinish, map[string]any{"status": r.Status, "error": r.Error}); err != nil {
		t.c.log.Warn("a hook cannot run", "run", r.ID, "hook", "on_run_finish", "error", err)
	}
}

// addHook adds the run of a hook of r.
func (t *tx) addHook(r *run, h coordapi.Hook, more map[string]any) (*run, error) {
	more["run_id"], more["session_id"], more["agent_name"], more["parameters"] = r.ID, r.SessionID, r.AgentName, r.Parameters
	text, err := encode(more)
	if err != nil {
		return nil, err
	}
	more["prompt"] = string(text) // for an agent that knows prompts only
	parameters, err := encode(more)
	if err != nil {
		return nil, err
	}
	a, err := t.agent(h.AgentName)
	if err != nil {
		return nil, err
	}
	hook := &run{Internal: true, Owner: r.Owner, Run: coordapi.Run{
		Type: coordapi.StartSession, AgentName: h.AgentName, Parameters: parameters, Prompt: string(text),
		ExecutionMode: coordapi.ModeAsyncPoll, Blueprint: &a.Agent, Demands: a.demands,
	}}
	t.add(hook, nil)
	return hook, nil
}

// hookEnded goes on with the run that has waited for a hook.
func (t *tx) hookEnded(hook *run, s *session) {
	r := t.run(hook.HookOf)
	if r == nil || r.Hook != hook.ID || r.Status != coordapi.RunPending {
		return
	}
	r.Hook = ""
	t.wait(r, matchWithin)
	if hook.Status != coordapi.RunCompleted {
		t.hookFailed(r, errors.New(cmp.Or(hook.Error, string(hook.Status))))
		return
	}
	said, err := hookResult(s.Result)
	switch {
	case err != nil:
		t.hookFailed(r, err)
	case said.Action == actionBlock:
		t.end(r, coordapi.RunFailed, coordapi.SessionFailed, "blocked by on_run_start: "+cmp.Or(said.BlockReason, "without a reason"))
	case len(said.Parameters) > maxRun:
		t.hookFailed(r, fmt.Errorf("its parameters have more than %d bytes", maxRun))
	case len(said.Parameters) > 0:
		if err := r.checkParameters(said.Parameters); err != nil {
			t.hookFailed(r, err)
			return
		}
		r.Parameters, r.Prompt = said.Parameters, ""
		var known struct{ Prompt string }
		if json.Unmarshal(said.Parameters, &known) == nil {
			r.Prompt = known.Prompt
		}
	}
}

// hookResult reads what a hook has decided.
func hookResult(r *coordapi.Result) (said coordapi.HookResult, err error) {
	if r == nil {
		return said, errors.New("it has no result")
	}
	data := r.Data
	if len(data) == 0 || string(data) == "null" {
		data = json.RawMessage(r.Text)
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return said, fmt.Errorf("its result is no JSON object: %w", err)
	}
	if said.Action != actionContinue && said.Action != actionBlock {
		return said, fmt.Errorf("its result has the action %q; use continue or block", said.Action)
	}
	if string(said.Parameters) == "null" {
		said.Parameters = nil
	}
	return said, nil
}

// hookLate goes on without a hook that takes too long, and stops it.
func (t *tx) hookLate(r *run) {
	hook := t.run(r.Hook)
	r.Hook = ""
	t.wait(r, matchWithin)
	t.hookFailed(r, errHookLate)
	if hook != nil {
		t.stop(t.session(hook.SessionID), "stopped: "+errHookLate.Error())
	}
}

// hookFailed goes on as the hook wants it for its own failure.
func (t *tx) hookFailed(r *run, err error) {
	if r.Blueprint.Hooks.OnRunStart.OnError == actionBlock {
		t.end(r, coordapi.RunFailed, coordapi.SessionFailed, fmt.Sprintf("on_run_start failed: %v", err))
		return
	}
	t.c.log.Warn("a run goes on without its hook", "run", r.ID, "hook", "on_run_start", "error", err)
}
