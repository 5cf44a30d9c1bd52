package opencode

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// query is a running prompt. The mutex of the conversation guards it.
type query struct {
	id        string   // of the user's message
	also      []string // user messages that the program created to continue
	accepted  bool     // the program has accepted the message
	busy      bool     // the program works on it, so an interrupt reaches it
	idle      bool     // the program has stopped working on it
	beats     int      // heartbeats of the server since it became idle
	interrupt bool     // an interrupt came before the program worked on it
	cancelled bool     // it was interrupted
	rejected  bool     // the user rejected a request in order to stop it
	limited   bool     // it reached its limit of turns
	answers   map[string]messageInfo
	last      string        // the id of the last answer
	problem   *messageError // an error that belongs to no message
	gaveUp    error         // why the driver stopped it
	finished  bool
	done      chan struct{}
}

func newQuery(id string) *query {
	return &query{id: id, answers: map[string]messageInfo{}, done: make(chan struct{})}
}

// owns reports whether a message belongs to the query.
func (q *query) owns(m messageInfo) bool {
	return m.ID == q.id || m.ParentID == q.id || slices.Contains(q.also, m.ID) || slices.Contains(q.also, m.ParentID)
}

// answer records a message of the model, and reports whether it is new.
func (q *query) answer(m messageInfo) bool {
	old, known := q.answers[m.ID]
	if known && old.over() && !m.over() {
		return false // an event that arrived out of order
	}
	q.answers[m.ID] = m
	q.last = max(q.last, m.ID) // greater ids are newer
	return !known
}

// settle finishes the query if the program is done with it: it is idle, and every answer is
// complete. A query without any answer has failed or was stopped early.
func (q *query) settle() {
	if q.finished || !q.idle {
		return
	}
	for _, m := range q.answers {
		if !m.over() {
			return
		}
	}
	if len(q.answers) > 0 || q.problem != nil || q.cancelled {
		q.finish()
	}
}

func (q *query) finish() {
	if !q.finished {
		q.finished = true
		close(q.done)
	}
}

// outcome returns how the query ended.
func (q *query) outcome() (runnerscripts.StopReason, error) {
	last := q.answers[q.last]
	problem := cmp.Or(last.Error, q.problem)
	aborted := problem != nil && problem.Name == errAborted
	switch {
	case q.gaveUp != nil:
		return "", q.gaveUp
	case q.limited:
		return runnerscripts.StopMaxRequests, nil
	case aborted, (q.cancelled || q.rejected) && last.Finish != "stop":
		return runnerscripts.StopCancelled, nil
	case problem != nil:
		return stopOf(*problem)
	}
	switch last.Finish {
	case "length":
		return runnerscripts.StopMaxTokens, nil
	case "content-filter":
		return runnerscripts.StopRefusal, nil
	}
	return runnerscripts.StopEndTurn, nil
}

// stopOf returns the outcome of a query that failed.
func stopOf(f messageError) (runnerscripts.StopReason, error) {
	switch f.Name {
	case "MessageOutputLengthError":
		return runnerscripts.StopMaxTokens, nil
	case "ContentFilterError":
		return runnerscripts.StopRefusal, nil
	case "APIError", "ProviderAuthError", "ContextOverflowError":
		return "", apiFailure(f)
	}
	return "", agent.FailedQuery("OpenCode ended the query with an error: %s: %s", f.Name, f.Data.Message)
}

func apiFailure(f messageError) error {
	const key = "as provider.NAME.options.apiKey in agent.config"
	advice := ""
	switch f.Name {
	case "ContextOverflowError":
		advice = "begin a new session, or use a model with a larger context"
	case "ProviderAuthError":
		advice = "give the agent a key that the model's API accepts, for example " + key
	}
	return agent.APIFailure(f.Data.StatusCode, f.Data.Message, key, advice)
}

// tooManyRetries returns the error of a query that was stopped because the model's API fails
// repeatedly.
func tooManyRetries(attempts int, message string) error {
	return &runnerscripts.ScriptFailure{
		Code:    runnerscripts.FailAPI,
		Message: fmt.Sprintf("the model's API failed %d times in a row: %s; send the prompt again later", attempts, message),
	}
}
