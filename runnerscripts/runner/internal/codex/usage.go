package codex

import (
	"encoding/json"
	"net/http"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// meter finds what is new in counts that are cumulative over a thread.
type meter struct {
	last map[string]tokens // by thread
}

// add returns what a count adds to the one before. A process that resumes a thread
// counts first what it found; that belongs to no turn of its own.
func (m *meter) add(n usageNote) runnerscripts.Usage {
	if m.last == nil {
		m.last = map[string]tokens{}
	}
	now := n.TokenUsage.Total
	before := m.last[n.ThreadID]
	m.last[n.ThreadID] = now
	cached := now.CachedTokens - before.CachedTokens
	written := now.CacheWriteTokens - before.CacheWriteTokens
	return runnerscripts.Usage{
		InputTokens:      max(0, now.InputTokens-before.InputTokens-cached-written),
		OutputTokens:     max(0, now.OutputTokens-before.OutputTokens),
		CacheReadTokens:  max(0, cached),
		CacheWriteTokens: max(0, written),
	}
}

// outcome says how a query ended whose turn ended as t. cancelled says that somebody
// asked to stop it, abandoned that subagents had not ended by then.
func outcome(t turn, cancelled, abandoned bool) (runnerscripts.StopReason, error) {
	switch {
	case t.Status == turnInterrupted, cancelled && (abandoned || t.Status != turnDone):
		return runnerscripts.StopCancelled, nil
	case t.Status == turnDone:
		return runnerscripts.StopEndTurn, nil
	case t.Error == nil:
		return "", apiFailure(turnError{Message: "the turn ended as " + t.Status})
	}
	return "", apiFailure(*t.Error)
}

func apiFailure(e turnError) error {
	kind, status := e.kind()
	advice := "check the address and the key of the model's API that the agent was given, and try again"
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		advice = "give the agent a key that the model's API accepts, for example in its environment as " + envKey
	case status == http.StatusTooManyRequests, kind == "serverOverloaded":
		advice = "try again later: the model's API is over its limits"
	case kind == "contextWindowExceeded":
		advice = "start a new session: the conversation is longer than the model's context"
	case kind == "modelNotFound":
		advice = "choose another agent.model"
	}
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailAPI, Message: advice + ": " + e.text(), HTTPStatus: status,
	}
}

// kind is the kind of a failure and the HTTP status behind it, zero if unknown.
func (e turnError) kind() (string, int) {
	known := map[string]int{
		"unauthorized": http.StatusUnauthorized, "badRequest": http.StatusBadRequest,
		"rateLimitExceeded": http.StatusTooManyRequests, "usageLimitExceeded": http.StatusTooManyRequests,
	}
	var kind string
	if json.Unmarshal(e.Info, &kind) == nil && kind != "other" {
		return kind, known[kind]
	}
	var detailed map[string]struct {
		Status int `json:"httpStatusCode"`
	}
	if json.Unmarshal(e.Info, &detailed) == nil {
		for kind, d := range detailed {
			return kind, d.Status
		}
	}
	// The body of a reply with status 400 stands alone.
	var body struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal([]byte(e.Message), &body) == nil && len(body.Error) > 0 {
		return kind, http.StatusBadRequest
	}
	return kind, 0
}
