// Package lastfailure keeps the last failure that an agent reported and has not recovered from,
// such as a failing API that it keeps retrying. It explains why a caller ran into its deadline.
package lastfailure

import (
	"fmt"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Keeper keeps the last failure of a query. The zero value has no failure. It is safe for
// concurrent use.
type Keeper struct {
	mu   sync.Mutex
	last *runnerscripts.ScriptFailure
}

// Add processes an event. A log event with a code is a failure. Messages, thoughts and tool
// calls of the agent clear the failure, because its model answers again.
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

// Explain wraps the error of a caller whose context is done together with the failure, a
// [*runnerscripts.ScriptFailure]. Without a failure it returns err.
func (k *Keeper) Explain(err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last == nil || err == nil {
		return err
	}
	return fmt.Errorf("%w; the last that the agent reported: %w", err, k.last)
}
