// Package lastfailure keeps the last failure that an agent has reported and not overcome,
// such as that of an API that it asks again and again. It is why a caller whose time runs
// out got no answer.
package lastfailure

import (
	"fmt"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Keeper keeps the last failure of a query. Its zero value has none. It is safe for
// concurrent use.
type Keeper struct {
	mu   sync.Mutex
	last *runnerscripts.ScriptFailure
}

// Add takes an event in: a log event with a code is a failure, and what an agent does
// when its model answers overcomes it.
func (k *Keeper) Add(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeLog:
		l, err := runnerscripts.Payload[runnerscripts.Log](ev)
		if err != nil || l.Code == "" {
			return
		}
		k.set(&runnerscripts.ScriptFailure{Code: l.Code, Message: l.Message, HTTPStatus: l.HTTPStatus})
	case runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought, runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		k.set(nil)
	}
}

func (k *Keeper) set(f *runnerscripts.ScriptFailure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = f
}

// Explain adds the failure to the error of a caller whose context has ended, as a
// [*runnerscripts.ScriptFailure] of its chain. Without a failure it returns err.
func (k *Keeper) Explain(err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last == nil || err == nil {
		return err
	}
	return fmt.Errorf("%w; the last that the agent reported: %w", err, k.last)
}
