package query

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	rules "github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxRemembered limits how many answers are kept for the session. Later ones hold once.
const maxRemembered = 1024

// verdict is the decision of the rules, or of an earlier answer, about a request.
type verdict struct {
	runnerscripts.PermissionResolved
	effect  rules.Effect
	message string // for the agent
}

// answer returns the answer to the request.
func (v *verdict) answer(req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	if v.effect == rules.Allow {
		return req.Allow()
	}
	return req.Reject(v.message)
}

// judge decides about a request by the rules. It returns nil if the request must be asked. It sets the call and the key of
// open, and MayDeny and Decided of the request.
func (q *Queries) judge(ev *runnerscripts.Event, open *openRequest) *verdict {
	req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](*ev)
	if err != nil {
		return nil // asking reports it
	}
	call := CallOf(req.ToolCall)
	open.name, open.kind = call.Name, call.Kind
	open.entry = audit.Entry{Event: audit.Permission, Query: ev.QueryID, Tool: q.Names.Tool(call), Call: audit.Cut(q.Names.Subject(call))}
	if q.Rules == nil {
		ev.Payload = withHostFields(ev.Payload, "", false)
		return nil
	}
	d := q.Rules.Decide(call)
	v := q.judgeBy(d, call, open)
	ev.Payload = withHostFields(ev.Payload, d.MayDeny, v != nil)
	return v
}

// judgeBy returns the verdict of the rules' decision about a call, or of an earlier answer; nil if the request must be asked.
func (q *Queries) judgeBy(d rules.Decision, call rules.Call, open *openRequest) *verdict {
	open.key = q.Rules.Key(call)
	v := &verdict{effect: d.Effect, message: "Denied: " + d.Reason + "."}
	v.Scope = runnerscripts.ScopeOnce
	switch {
	case d.Effect != rules.Ask && d.Rule != "":
		v.Reason, v.Rule = runnerscripts.ReasonRule, d.Rule
	case d.Effect != rules.Ask:
		v.Reason = runnerscripts.ReasonMode
	case d.Question || open.key == "":
		open.key = ""
		return nil
	default:
		open.key += " " + d.Rule // another rule that asks later is about something else
		if d.MayDeny != "" && d.MayDeny != d.Rule {
			open.key += " " + d.MayDeny
		}
		return q.earlier(open.key)
	}
	return v
}

// withHostFields sets PermissionRequest.MayDeny and Decided in a request, also if the script has set them: they are the host's. It
// removes the fields for their zero values, and keeps those that this program does not know.
func withHostFields(request json.RawMessage, mayDeny string, decided bool) json.RawMessage {
	var fields map[string]json.RawMessage
	quoted, err := json.Marshal(mayDeny)
	if err != nil || json.Unmarshal(request, &fields) != nil {
		return request // cannot happen: it was decoded before
	}
	all := len(fields)
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { // as encoding/json reads it
		return strings.EqualFold(name, "mayDeny") || strings.EqualFold(name, "decided")
	})
	if mayDeny == "" && !decided && len(fields) == all {
		return request
	}
	if mayDeny != "" {
		fields["mayDeny"] = quoted
	}
	if decided {
		fields["decided"] = json.RawMessage("true")
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return request // cannot happen: it was JSON
	}
	return data
}

// earlier returns the verdict of an earlier answer; nil if there is none.
func (q *Queries) earlier(key string) *verdict {
	v := &verdict{}
	if effect, known := q.remembered(key); known {
		v.effect, v.message, v.Reason, v.Scope = effect, "Denied for this session.", runnerscripts.ReasonSession, runnerscripts.ScopeSession
		return v
	}
	if q.Answers.Project == "" {
		return nil
	}
	a, known, err := answers.Find(q.Answers, key)
	if err != nil {
		q.events.Log.Warn("a permission request is asked, although it may have been answered for always", eventlog.Error, err)
	}
	if !known {
		return nil
	}
	v.effect, v.message, v.Reason, v.Scope, v.By = rules.Deny, "Denied always.", runnerscripts.ReasonAlways, runnerscripts.ScopeAlways, a.By
	if a.Allow {
		v.effect = rules.Allow
	}
	return v
}

// KeepsAnswers is as environment.KeepsAnswers describes.
func (q *Queries) KeepsAnswers() bool { return q.Rules != nil && q.Answers.Project != "" }

// checkAlways returns an error for an answer of the scope always that cannot be stored.
func (q *Queries) checkAlways(open *openRequest, d runnerscripts.PermissionDecision) error {
	var why string
	switch {
	case d.Scope == "":
		return nil
	case d.Scope != runnerscripts.ScopeAlways:
		why = fmt.Sprintf("there is no %q; leave it out or use %s", d.Scope, runnerscripts.ScopeAlways)
	case q.Rules == nil:
		why = "answers are kept with permissions only; add permissions to the configuration"
	case q.Answers.Project == "":
		why = "the workspace has no folder or repository for which the answer could hold"
	case open.key == "":
		why = "the call is not one that can be answered for another time"
	case len(d.UpdatedInput) > 0:
		why = "an answer with updated_input holds once"
	default:
		return nil
	}
	return fmt.Errorf("%w: scope: %s", fs.ErrInvalid, why)
}

// store stores an answer of the scope always.
func (q *Queries) store(open *openRequest, kind runnerscripts.PermissionKind, by string) error {
	return answers.Add(answers.Answer{
		Place: q.Answers, Key: open.key, Tool: open.entry.Tool, Call: open.entry.Call, Allow: kind.Allows(), By: by,
	})
}

// CallOf returns a tool call as the rules know it.
func CallOf(t runnerscripts.ToolCall) rules.Call {
	call := rules.Call{Name: t.Name, Kind: string(t.Kind), Input: t.RawInput}
	for _, l := range t.Locations {
		call.Paths = append(call.Paths, l.Path)
	}
	for _, c := range t.Content {
		if c.Path != "" {
			call.Paths = append(call.Paths, c.Path)
		}
	}
	return call
}

// checkUpdate returns fs.ErrInvalid for an answer that changes the input of a call to what a rule or the
// mode denies.
func (q *Queries) checkUpdate(open *openRequest, d runnerscripts.PermissionDecision) error {
	if q.Rules == nil || len(d.UpdatedInput) == 0 {
		return nil
	}
	by := q.Rules.Decide(rules.Call{Name: open.name, Kind: open.kind, Input: d.UpdatedInput})
	if by.Effect == rules.Deny {
		return fmt.Errorf("%w: updated_input is denied: %s", fs.ErrInvalid, by.Reason)
	}
	return nil
}

// auditAnswer adds an answer to the audit log.
func (q *Queries) auditAnswer(open *openRequest, d runnerscripts.PermissionDecision, done runnerscripts.PermissionResolved) {
	e := open.entry
	if len(d.UpdatedInput) > 0 {
		e.Call = q.Names.Subject(rules.Call{Name: open.name, Kind: open.kind, Input: d.UpdatedInput})
	}
	e.Decision, e.Reason, e.Rule, e.Scope, e.By = string(rules.Deny), done.Reason, done.Rule, done.Scope, done.By
	if done.Kind.Allows() {
		e.Decision = string(rules.Allow)
	}
	q.Audit.Add(e)
}

func (q *Queries) remembered(key string) (effect rules.Effect, known bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	effect, known = q.answers[key]
	return effect, known
}

// rememberLocked keeps an answer that holds for the session, and returns the decision for the agent,
// with its scope. The agent gets an answer for once: it would not ask again otherwise, and its idea of
// what is the same may cover what a rule denies. The caller holds Queries.mu.
func (q *Queries) rememberLocked(key string, req runnerscripts.PermissionRequest, kind runnerscripts.PermissionKind, d runnerscripts.PermissionDecision, scope string) (runnerscripts.PermissionDecision, string) {
	if scope != "" { // the rules have decided
		return d, scope
	}
	always := d.Scope == runnerscripts.ScopeAlways
	if kind != runnerscripts.AllowAlways && kind != runnerscripts.RejectAlways && !always {
		return d, runnerscripts.ScopeOnce
	}
	once := req.Reject(d.Message)
	if kind.Allows() {
		once = req.Allow()
	}
	once.Message, once.UpdatedInput, once.Interrupt = d.Message, d.UpdatedInput, d.Interrupt
	if always {
		return once, runnerscripts.ScopeAlways
	}
	if key == "" || len(q.answers) >= maxRemembered || len(d.UpdatedInput) > 0 {
		return once, runnerscripts.ScopeOnce
	}
	if q.answers == nil {
		q.answers = map[string]rules.Effect{}
	}
	q.answers[key] = rules.Deny
	if kind.Allows() {
		q.answers[key] = rules.Allow
	}
	return once, runnerscripts.ScopeSession
}
