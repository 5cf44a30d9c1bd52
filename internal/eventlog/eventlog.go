// Package eventlog writes log records about events, for operators. It does not store the
// events: session/log.go does. Starts and ends are logged at level info, events that need a
// user's action at level warn, the rest at level debug. Records never contain prompts or the
// agent's output.
package eventlog

import (
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The keys of records, which all packages share.
const (
	Sandbox = "sandbox" // the ID of the sandbox
	Type    = "type"    // of the sandbox, as in the configuration
	Session = "session" // the ID of the conversation
	Query   = "query"   // Event.QueryID
	Agent   = "agent"   // the name of the agent
	Request = "request" // the ID of a request for permission
	Error   = "error"
)

// Write writes the record of an event, if that type of event has one.
func Write(log hclog.Logger, ev runnerscripts.Event) {
	if ev.QueryID != "" {
		log = log.With(Query, ev.QueryID)
	}
	switch ev.Type {
	case runnerscripts.TypeQueryQueued:
		log.Debug("query queued")
	case runnerscripts.TypeQueryStarted:
		log.Info("query started")
	case runnerscripts.TypeQueryCompleted:
		q := payload[runnerscripts.QueryCompleted](ev)
		log.Info("query completed", "stop_reason", q.StopReason, "duration_ms", q.DurationMS)
	case runnerscripts.TypeQueryFailed:
		q := payload[runnerscripts.QueryFailed](ev)
		log.Warn("query failed", "code", q.Code, Error, q.Message)
	case runnerscripts.TypeLog:
		writeLog(log, payload[runnerscripts.Log](ev))
	case runnerscripts.TypeError:
		e := payload[runnerscripts.ErrorInfo](ev)
		log.Warn("error reported", "code", e.Code, Error, e.Message)
	case runnerscripts.TypePermissionRequest:
		log.Debug("permission requested", Request, payload[runnerscripts.PermissionRequest](ev).ID)
	case runnerscripts.TypePermissionResolved:
		writeResolved(log, payload[runnerscripts.PermissionResolved](ev))
	default:
		writeEnvironment(log, ev)
	}
}

func writeLog(log hclog.Logger, l runnerscripts.Log) {
	switch {
	case l.Stream != "":
		log.Debug("agent output", "stream", l.Stream, "line", l.Message)
	case l.Level == "error":
		log.Error("log event", "message", l.Message)
	case l.Level == "warn":
		log.Warn("log event", "message", l.Message)
	case l.Level == "info":
		log.Info("log event", "message", l.Message)
	default:
		log.Debug("log event", "message", l.Message)
	}
}

func writeResolved(log hclog.Logger, p runnerscripts.PermissionResolved) {
	if p.Reason == runnerscripts.ReasonTimeout {
		log.Warn("permission request timed out and was rejected", Request, p.ID)
		return
	}
	log.Debug("permission resolved", Request, p.ID, "kind", p.Kind, "reason", p.Reason)
}

// writeEnvironment writes the records of a session's sandboxes.
func writeEnvironment(log hclog.Logger, ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeEnvironmentCreating:
		log.Debug("sandbox is being made")
	case runnerscripts.TypeEnvironmentReady:
		log.Info("sandbox ready", Sandbox, payload[runnerscripts.EnvironmentInfo](ev).ID)
	case runnerscripts.TypeEnvironmentError:
		log.Error("sandbox cannot be made", Error, payload[runnerscripts.ErrorInfo](ev).Message)
	case runnerscripts.TypeEnvironmentHealth:
		info := payload[runnerscripts.EnvironmentInfo](ev)
		if info.Status == "running" {
			log.Info("sandbox answers again", Sandbox, info.ID)
			return
		}
		log.Warn("sandbox does not answer", Sandbox, info.ID, Error, info.Message)
	case runnerscripts.TypeEnvironmentTerminated:
		reason := payload[runnerscripts.EnvironmentTerminated](ev).Reason
		if reason == "unhealthy" {
			log.Warn("sandbox lost", "reason", reason)
			return
		}
		log.Debug("session left its sandbox", "reason", reason)
	}
}

// payload returns the payload of an event, or the zero value if it cannot be decoded.
func payload[T any](ev runnerscripts.Event) T {
	p, _ := runnerscripts.Payload[T](ev)
	return p
}
