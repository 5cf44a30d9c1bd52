package docker

import (
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestTheFateThatEventsTell(t *testing.T) {
	t.Parallel()
	at := time.Now()
	event := func(ago time.Duration, action events.Action, attributes ...string) events.Message {
		m := events.Message{Action: action, TimeNano: at.Add(-ago).UnixNano()}
		m.Actor.Attributes = map[string]string{}
		for i := 0; i < len(attributes); i += 2 {
			m.Actor.Attributes[attributes[i]] = attributes[i+1]
		}
		return m
	}
	oom := func(ago time.Duration) events.Message { return event(ago, events.ActionOOM) }
	signal := func(ago time.Duration, n string) events.Message {
		return event(ago, events.ActionKill, "signal", n)
	}
	die := func(ago time.Duration, code string) events.Message {
		return event(ago, events.ActionDie, "exitCode", code)
	}
	ended := func(code int, reason primitives.ExitReason, signal primitives.Signal) primitives.State {
		return primitives.State{Status: primitives.StatusExited, Exit: primitives.ExitStatus{Code: code, Reason: reason, Signal: signal}}
	}
	killed, ofMemory := ended(137, primitives.ReasonSignaled, primitives.SIGKILL), ended(137, primitives.ReasonOOM, primitives.SIGKILL)
	for name, c := range map[string]struct {
		list []events.Message
		want primitives.State
	}{
		"nothing":                   {nil, primitives.State{Status: primitives.StatusLost}},
		"still there":               {[]events.Message{event(time.Second, events.ActionStart)}, primitives.State{Status: primitives.StatusLost}},
		"by itself":                 {[]events.Message{die(0, "3")}, ended(3, primitives.ReasonExited, "")},
		"killed":                    {[]events.Message{signal(time.Second, "9"), die(0, "137")}, killed},
		"of memory":                 {[]events.Message{oom(80 * time.Millisecond), oom(30 * time.Millisecond), die(0, "137")}, ofMemory},
		"of memory, while stopping": {[]events.Message{signal(time.Second, "15"), oom(30 * time.Millisecond), die(0, "137")}, ofMemory},
		"another status":            {[]events.Message{oom(30 * time.Millisecond), die(0, "1")}, ended(1, primitives.ReasonExited, "")},
		// The OOM kills of these hit only a command.
		"of memory long before":      {[]events.Message{oom(time.Hour), die(0, "137")}, killed},
		"killed after it":            {[]events.Message{oom(time.Second), signal(time.Second, "9"), die(0, "137")}, killed},
		"killed before it is told":   {[]events.Message{signal(time.Second, "9"), oom(30 * time.Millisecond), die(0, "137")}, killed},
		"of memory in another life":  {[]events.Message{oom(2 * time.Second), die(2*time.Second, "137"), event(time.Second, events.ActionStart), die(0, "137")}, killed},
		"of memory in the last life": {[]events.Message{die(time.Hour, "1"), event(time.Second, events.ActionStart), oom(time.Millisecond), die(0, "137")}, ofMemory},
		"terminated":                 {[]events.Message{event(time.Second, endAction), signal(time.Second, "9"), die(0, "137")}, primitives.State{Status: primitives.StatusTerminated}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ending(c.list); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
