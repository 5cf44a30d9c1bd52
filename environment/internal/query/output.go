package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxAsks is how often an agent is asked again for output that matches the schema of its query.
const maxAsks = 2

// output is the output of a query that has a schema. All programs that follow the query come to the same verdicts, because these
// depend only on its events.
type output struct {
	schema *schema.Schema // nil: the query has none
	said   Said           // in this turn
	asked  int
	result json.RawMessage // of the last turn that has ended; nil for no JSON
}

// begin sets the schema, unless the query has one.
func (o *output) begin(text json.RawMessage) (err error) {
	if o.schema == nil && len(text) > 0 {
		o.schema, err = schema.Parse(text)
	}
	return err
}

// add adds an event of the agent.
func (o *output) add(ev runnerscripts.Event) {
	if o.schema != nil && (ev.ConversationID == "" || ev.ConversationID == runnerscripts.MainConversation) {
		o.said.Add(ev)
	}
}

// end ends a turn, which has the result native if the agent has one of its own. Without a new result that of the turn
// before stays.
func (o *output) end(native json.RawMessage) {
	texts := o.said.texts()
	switch {
	case len(native) > 0:
		o.result = native
	case len(texts) > 0:
		o.result = findJSON(append([]string{o.said.Text()}, texts[len(texts)-1])...)
	}
	o.said = Said{}
}

// check checks the result of the last turn. Its error is a *runnerscripts.ScriptFailure.
func (o *output) check() error {
	if o.schema == nil {
		return nil
	}
	return Mismatch(runnerscripts.FailOutput, o.schema.Check("result", o.result), o.result)
}

// fence matches a block of code in Markdown.
var fence = regexp.MustCompile("(?ms)^[ \t]*```[^`\\n]*\\n(.*?)^[ \t]*```[ \t]*$")

// findJSON returns the first text that is JSON, or has one block of code, which is JSON; nil for none.
func findJSON(texts ...string) json.RawMessage {
	for _, text := range texts {
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
		if blocks := fence.FindAllStringSubmatch(text, 2); len(blocks) == 1 && json.Valid([]byte(blocks[0][1])) {
			return json.RawMessage(strings.TrimSpace(blocks[0][1]))
		}
	}
	return nil
}

// judge returns the answer to an offered output: the query ends, or the agent gets another turn.
func (o *output) judge(offer runnerscripts.QueryOutput) runnerscripts.Control {
	o.end(offer.ResultData)
	answer := runnerscripts.Control{Type: runnerscripts.ControlOutput, ID: offer.ID}
	if wrong, ok := errors.AsType[*runnerscripts.ScriptFailure](o.check()); ok && o.asked < maxAsks {
		o.asked++
		answer.Text = askAgain(wrong.Detail.Violations)
	}
	return answer
}

// askAgain returns the prompt for an agent whose output does not match.
func askAgain(violations []runnerscripts.Violation) string {
	var b strings.Builder
	b.WriteString("Your answer does not match the JSON schema that was asked for:\n")
	for _, v := range violations {
		fmt.Fprintf(&b, "- %s: %s\n", v.Path, v.Message)
	}
	b.WriteString("Answer again, completely, so that it matches.")
	return b.String()
}

// followOutput sets the schema of a query that another program has sent, or that continues without it.
func (r *run) followOutput(started runnerscripts.Event) error {
	p, err := runnerscripts.Payload[runnerscripts.QueryStarted](started)
	if err != nil {
		return nil
	}
	if err = r.output.begin(p.OutputSchema); err != nil {
		return &runnerscripts.ScriptError{Script: runnerscripts.ExecuteQuery, Err: fmt.Errorf("its query_started has a bad output_schema: %w", err)}
	}
	return nil
}

// judge answers an offered output. Every program that follows the query does, and the runner takes the first answer.
func (r *run) judge(ctx context.Context, ev runnerscripts.Event) error {
	offer, err := runnerscripts.Payload[runnerscripts.QueryOutput](ev)
	if err != nil {
		return &runnerscripts.ScriptError{Script: runnerscripts.ExecuteQuery, Err: fmt.Errorf("its query_output is malformed: %w", err)}
	}
	answer := r.output.judge(offer)
	r.asks.Go(func() {
		// The runner has ended, the environment is closed or the query has been cancelled, which is reported elsewhere.
		if err := r.q.control(ctx, answer); err != nil {
			r.q.events.Log.Debug("the answer to an output was not sent", eventlog.Query, r.query.ID, eventlog.Error, err)
		}
	})
	return nil
}

// Mismatch returns the failure for JSON that does not match its schema.
func Mismatch(code runnerscripts.FailureCode, err error, result json.RawMessage) error {
	wrong, ok := errors.AsType[*executor.SchemaError](err)
	if !ok {
		return err
	}
	return &runnerscripts.ScriptFailure{
		Code: code, Message: wrong.Error(),
		Detail: &runnerscripts.FailureDetail{Violations: wrong.Violations, ResultData: result},
	}
}
