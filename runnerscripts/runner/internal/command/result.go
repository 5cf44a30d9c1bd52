package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

const (
	// maxResult bounds the result of an executor.
	maxResult = 16 << 20
	// maxStderr is how much of the end of standard error is part of a procedural result.
	maxStderr = 64 << 10
)

// output is the result of a procedural executor that prints no JSON, or fails.
type output struct {
	ReturnCode int    `json:"return_code"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
}

// call runs a procedural executor with the parameters as arguments.
func (c *conversation) call(ctx context.Context, q *query, parameters json.RawMessage) error {
	args, err := executor.Arguments(parameters)
	if err != nil {
		return mismatch(err)
	}
	cmd, err := launch(c.session, c.profile)
	if err != nil {
		return err
	}
	var stdout bytes.Buffer
	stderr := tail.Buffer{Max: maxStderr}
	cmd.Args = slices.Concat(cmd.Args, args)
	cmd.Read = func(r io.Reader) error {
		n, err := io.Copy(&stdout, io.LimitReader(r, maxResult+1))
		if n > maxResult {
			return fmt.Errorf("%w: it is longer than %d bytes; print less", primitives.ErrLimit, maxResult)
		}
		return err
	}
	cmd.Stderr = func(line []byte) bool {
		_, _ = stderr.Write(append(bytes.Clone(line), '\n')) // it keeps the end and has no error
		return c.printed(line)
	}
	p, err := c.start(cmd)
	if err != nil {
		return err
	}
	written := make(chan struct{})
	close(written)
	p.CloseInput()
	if err := c.await(ctx, p, q, written); err != nil {
		return err
	}
	text := strings.ToValidUTF8(stdout.String(), "\uFFFD")
	if text != "" {
		c.say(q, text)
	}
	c.mu.Lock()
	cancelled, expired := q.cancelled, q.expired
	c.mu.Unlock()
	if cancelled {
		return nil
	}
	return c.returned(q, p, expired, output{Stdout: text, Stderr: strings.ToValidUTF8(stderr.String(), "\uFFFD")})
}

// returned sets the result of a procedural executor that has ended.
func (c *conversation) returned(q *query, p *child.Process, expired bool, o output) error {
	failure := &runnerscripts.ScriptFailure{Code: runnerscripts.FailQuery}
	exit, exited := errors.AsType[*exec.ExitError](p.Err())
	switch {
	case expired:
		o.ReturnCode, failure.Code = executor.TimeoutStatus, runnerscripts.FailTimeout
		failure.Message = fmt.Sprintf("the executor did not end within %v; raise timeout_seconds of its profile", c.profile.Timeout())
	case exited:
		if o.ReturnCode = exit.ExitCode(); o.ReturnCode < 0 {
			o.ReturnCode = 128 + int(exit.Sys().(syscall.WaitStatus).Signal()) // as a shell shows it
		}
		failure.Message = "the executor failed: " + p.Crash()
	case p.Err() != nil:
		return agent.Failed("the output of the executor cannot be read: %v", p.Err())
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if o.ReturnCode != 0 {
		failure.Detail = &runnerscripts.FailureDetail{ResultData: data}
		return failure
	}
	q.result = data
	if printed := bytes.TrimSpace([]byte(o.Stdout)); json.Valid(printed) {
		q.result = printed
	}
	return nil
}

// start starts a process of a one-shot executor.
func (c *conversation) start(cmd child.Command) (*child.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, agent.Closed()
	}
	p, err := child.Start(cmd, nil)
	if err != nil {
		return nil, agent.Failed("the executor cannot be started: %v; check that its command can run on this platform", err)
	}
	c.process = p
	return p, nil
}

// setResult sets the result of an executor with an output schema that gave only text: the text is the
// result if it is JSON. The host checks it against the schema.
func (c *conversation) setResult(q *query) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer := bytes.TrimSpace(q.answer); q.result == nil && json.Valid(answer) {
		q.result = answer
	}
}

// mismatch returns the failure for parameters that cannot be used.
func mismatch(err error) error {
	wrong, ok := errors.AsType[*executor.SchemaError](err)
	if !ok {
		return err
	}
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailParameters, Message: wrong.Error(),
		Detail: &runnerscripts.FailureDetail{Violations: wrong.Violations},
	}
}
