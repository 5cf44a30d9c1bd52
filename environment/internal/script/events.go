package script

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Events makes the events of one session.
type Events struct {
	Session string // its ID
	Hide    redact.Redactor
	Log     hclog.Logger
}

// FromScript turns an event that a script printed during a query into one of the host. It sets
// the source and what the event belongs to, and does not trust the script's own query ID. An
// event that a script may not send becomes a log event.
func (s Events) FromScript(ev runnerscripts.Event, queryID string, source runnerscripts.Source) runnerscripts.Event {
	ev = s.redact(ev)
	switch {
	case runnerscripts.HostOnly(ev.Type):
		ev = s.untrustedAsLog(ev, "the sandbox sent an event of a type that only the host makes")
	case ev.QueryID != "" && queryID != "" && ev.QueryID != queryID:
		ev = s.untrustedAsLog(ev, "the sandbox sent an event of another query")
	}
	ev.QueryID, ev.Source = queryID, source
	return s.enrich(ev)
}

// maxUntrusted limits how much of each part of a refused event its log event shows: 4 KiB.
const maxUntrusted = 4 << 10

// untrustedAsLog returns the log event that replaces an untrusted event.
func (s Events) untrustedAsLog(ev runnerscripts.Event, why string) runnerscripts.Event {
	part := func(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxUntrusted)], "") }
	data, err := json.Marshal(map[string]any{
		"type": part(string(ev.Type)), "source": part(s.Hide.Text(string(ev.Source))), "query_id": part(s.Hide.Text(ev.QueryID)),
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
func (s Events) enrich(ev runnerscripts.Event) runnerscripts.Event {
	ev.Seq, ev.Index = 0, 0 // the session sets Seq, the query sets Index
	ev.SessionID = s.Session
	if ev.ConversationID == "" {
		ev.ConversationID = runnerscripts.MainConversation
	}
	if ev.Time.IsZero() {
		ev.Time = time.Now().UTC()
	}
	return ev
}

// New returns a new event of the environment itself.
func (s Events) New(typ runnerscripts.EventType, queryID string, payload any) runnerscripts.Event {
	data, err := json.Marshal(payload)
	if err != nil {
		data = []byte("{}") // no payload type of this package can fail
	}
	return s.enrich(s.redact(runnerscripts.Event{Type: typ, Payload: data, QueryID: queryID, Source: runnerscripts.SourceEnvironment}))
}

// log logs a script's event that belongs to no query.
func (s Events) log(script string, ev runnerscripts.Event) {
	eventlog.Write(s.Log.With("script", script), s.redact(ev))
}

// redact returns the event with the secrets in its strings redacted.
func (s Events) redact(ev runnerscripts.Event) runnerscripts.Event {
	if s.Hide.Empty() {
		return ev
	}
	ev.Payload = s.Hide.JSON(ev.Payload)
	if ev.ConversationID != runnerscripts.MainConversation {
		ev.ConversationID = s.Hide.Text(ev.ConversationID)
	}
	if runnerscripts.PayloadType(ev.Type) == nil {
		ev.Type = runnerscripts.EventType(s.Hide.Text(string(ev.Type)))
	}
	return ev
}
