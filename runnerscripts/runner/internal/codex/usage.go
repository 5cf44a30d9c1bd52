package codex

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// meter computes the new usage from counts that are cumulative over a thread.
type meter struct {
	last map[string]tokens // by thread
}

// add returns the usage since the previous count of the thread. A process that resumes a thread
// first reports the old count, which belongs to no turn.
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

// outcome returns the stop reason of a query with the turn t. cancelled says that the query was
// interrupted, abandoned that subagents were still working.
func outcome(t turn, cancelled, abandoned bool) (runnerscripts.StopReason, error) {
	switch {
	case t.Status == turnInterrupted, cancelled && (abandoned || t.Status != turnDone):
		return runnerscripts.StopCancelled, nil
	case t.Status == turnDone:
		return runnerscripts.StopEndTurn, nil
	case t.Error != nil && strings.Contains(t.Error.text(), incompleteBecause+"max_output_tokens"):
		return runnerscripts.StopMaxTokens, nil
	case t.Error != nil && strings.Contains(t.Error.text(), incompleteBecause+"content_filter"):
		return runnerscripts.StopRefusal, nil
	case t.Error == nil:
		return "", apiFailure(turnError{Message: "the turn ended as " + t.Status})
	}
	return "", apiFailure(*t.Error)
}

// incompleteBecause is the program's prefix for the reason that the model's API gives for an
// incomplete answer.
const incompleteBecause = "Incomplete response returned, reason: "

func apiFailure(e turnError) error {
	kind, status := e.kind()
	advice := ""
	switch {
	case kind == "serverOverloaded":
		advice = "send the prompt again later: the model's API is over its limits"
	case kind == "internalServerError":
		advice = "send the prompt again later: the model's API has failed"
	case kind == "responseStreamDisconnected", strings.HasPrefix(e.text(), "stream disconnected"):
		advice = "send the prompt again: the connection to the model's API was cut"
	case kind == "contextWindowExceeded":
		advice = "start a new session: the conversation is longer than the model's context"
	case kind == "modelNotFound":
		advice = "choose another agent.model"
	}
	return agent.APIFailure(status, e.text(), "in its environment as "+envKey, advice)
}

// kind returns the kind of a failure and the HTTP status behind it, zero if unknown.
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
	// After HTTP status 400, the message is only the body of the reply.
	var body struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal([]byte(e.Message), &body) == nil && len(body.Error) > 0 {
		return kind, http.StatusBadRequest
	}
	return kind, 0
}
