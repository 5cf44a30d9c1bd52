package claude

import (
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// meter computes the usage of each turn from cumulative counts.
type meter struct {
	last runnerscripts.Usage
}

// turn returns the usage of the turn that ends with r. The field "usage" omits subagents and
// interrupted work; the cumulative fields may start with the usage of a resumed session,
// depending on the version.
func (m *meter) turn(r resultLine) runnerscripts.Usage {
	total := sum(r.ModelUsage)
	total.CostUSD = r.TotalCostUSD
	before := m.last
	m.last = total
	if r.SinceLast != nil {
		return sum(r.SinceLast)
	}
	return runnerscripts.Usage{
		InputTokens:      total.InputTokens - before.InputTokens,
		OutputTokens:     total.OutputTokens - before.OutputTokens,
		CacheReadTokens:  total.CacheReadTokens - before.CacheReadTokens,
		CacheWriteTokens: total.CacheWriteTokens - before.CacheWriteTokens,
		CostUSD:          total.CostUSD - before.CostUSD,
	}
}

func sum(models map[string]modelUsage) runnerscripts.Usage {
	var u runnerscripts.Usage
	for _, m := range models {
		u = u.Add(runnerscripts.Usage{
			InputTokens: m.InputTokens, OutputTokens: m.OutputTokens,
			CacheReadTokens: m.CacheReadTokens, CacheWriteTokens: m.CacheWriteTokens,
			CostUSD: m.CostUSD,
		})
	}
	return u
}

// outcome returns how a query ended whose last turn ended with r. cancelled says that the query
// was interrupted.
func outcome(r resultLine, cancelled bool) (runnerscripts.StopReason, error) {
	failed := r.IsError || r.Subtype != "success"
	switch {
	case cancelled && failed, strings.HasPrefix(r.TerminalReason, "aborted"):
		return runnerscripts.StopCancelled, nil
	case r.Subtype == "error_max_turns":
		return runnerscripts.StopMaxRequests, nil
	case r.Subtype == "error_max_structured_output_retries":
		return "", &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailOutput,
			Message: "simplify the output schema, or use another model: the agent has found no output that matches: " + strings.Join(r.Errors, "; "),
		}
	case r.APIErrorStatus != 0, r.TerminalReason == "api_error", r.IsError && r.Subtype == "success":
		return "", apiFailure(r)
	case failed:
		return "", &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAgent,
			Message: fmt.Sprintf("look at what Claude Code reported: %s: %s",
				r.Subtype, strings.Join(append(r.Errors, r.Result), "; ")),
		}
	}
	switch r.StopReason {
	case "max_tokens", "model_context_window_exceeded":
		return runnerscripts.StopMaxTokens, nil
	case "refusal":
		return runnerscripts.StopRefusal, nil
	}
	return runnerscripts.StopEndTurn, nil
}

func apiFailure(r resultLine) error {
	status := r.APIErrorStatus
	if r.apiError == "authentication_failed" && status == 0 {
		return agent.APIFailure(0, r.Result, "", "give the agent a key that the model's API accepts, for example "+keyPlace)
	}
	return agent.APIFailure(status, r.Result, keyPlace, "")
}

// keyPlace tells the user where the program reads a key.
const keyPlace = "in its environment as ANTHROPIC_API_KEY"
