package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// request reads the request from the first line of input. The input is closed when ctx ends.
func request[T runnerscripts.Request](ctx context.Context, lines *runnerscripts.LineReader) (T, error) {
	var none T
	line, err := lines.Next()
	switch {
	case ctx.Err() != nil: // the line may be incomplete
		return none, signalled()
	case err != nil:
		if errors.Is(err, io.EOF) {
			return none, &runnerscripts.ScriptFailure{
				Code:    runnerscripts.FailInvalidRequest,
				Message: fmt.Sprintf("send a request on standard input, as one line of JSON (a %T, see envrunner --schema): it was empty", none),
			}
		}
		return none, fmt.Errorf("reading the request: %w", err)
	}
	return runnerscripts.DecodeRequest[T](line)
}

// driver returns the driver of an agent.
func (a *app) driver(name string) (agent.Driver, error) {
	if d, ok := a.agents[name]; ok {
		return d, nil
	}
	if runnerscripts.IsRegistryAgent(name) {
		return acp.Driver{Agent: name}, nil
	}
	return nil, &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailUnknownAgent,
		Message: fmt.Sprintf("choose one of the agents that this runner knows (%s): it does not know %q",
			strings.Join(slices.Sorted(maps.Keys(a.agents)), ", "), name),
	}
}

// marshal is json.Marshal without the escapes of <, > and &. It returns nil for nil.
func marshal(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	var buf strings.Builder
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(buf.String(), "\n")), nil
}
