package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

const (
	// callTimeout is how long a coordinator may take to answer, besides the time for which a poll waits.
	callTimeout = 30 * time.Second
	// firstWait and longestWait are between attempts. There are as many as it takes: sessions go on while the coordinator is away.
	firstWait, longestWait = 100 * time.Millisecond, 5 * time.Second
	// remindAfter is how often the log says that a request is not successful.
	remindAfter = time.Minute
	// maxAnswer is how many bytes of an answer are read.
	maxAnswer = 8 << 20
)

// refused is an answer of the coordinator that is an error.
type refused struct {
	status  int
	name    string // such as duplicate_runner; may be empty
	message string
}

func (r *refused) Error() string { return r.message }

// again reports whether the same request may be successful later.
func (r *refused) again() bool {
	return r.status >= 500 || r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout
}

// unauthorized reports whether the coordinator refuses the token, or does not know the runner.
func unauthorized(err error) bool {
	r, is := errors.AsType[*refused](err)
	return is && r.status == http.StatusUnauthorized
}

// replaced reports whether another program has the place of this runner.
func replaced(err error) bool {
	r, is := errors.AsType[*refused](err)
	return is && r.name == "duplicate_runner"
}

// client sends requests to a coordinator.
type client struct {
	base string
	http *http.Client
	log  hclog.Logger
	// register registers the runner again.
	register func(context.Context) error
}

// do sends one request, and decodes the answer into out unless the answer is empty. It must be JSON also if out is nil.
func (c *client) do(ctx context.Context, patience time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, patience+callTimeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false) // makes six bytes of one
		if err := enc.Encode(in); err != nil {
			return err
		}
		body = bytes.NewReader(b.Bytes())
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	data, err := io.ReadAll(io.LimitReader(w.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(data) > maxAnswer:
		return fmt.Errorf("the answer to %s %s has more than %d bytes", method, path, maxAnswer)
	case w.StatusCode/100 != 2:
		return refusal(w, method+" "+r.URL.Path, data)
	case len(data) == 0:
		return nil
	case out == nil: // what only acknowledges is an object too, else a proxy's page would lose a report
		out = new(map[string]json.RawMessage)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: the answer is none of a coordinator: %w; %s", method, path, err, c.hint())
	}
	return nil
}

// hint returns advice for an address that has no coordinator.
func (c *client) hint() string {
	if strings.HasSuffix(c.base, coordapi.Prefix) {
		return "one 'envctl serve' of a user and a machine has a coordinator; give the address of that"
	}
	return "that of an 'envctl serve' is at " + c.base + coordapi.Prefix
}

// refusal reads an error: that of a coordinator, or that of a server before it.
func refusal(w *http.Response, what string, data []byte) error {
	out := &refused{status: w.StatusCode}
	var said struct {
		Detail json.RawMessage
		Error  struct{ Code, Message string }
	}
	_ = json.Unmarshal(data, &said) // else the status says what there is to say
	var detail coordapi.Detail
	switch {
	case json.Unmarshal(said.Detail, &out.message) == nil:
	case json.Unmarshal(said.Detail, &detail) == nil:
		out.name, out.message = detail.Error, detail.Error+": "+detail.Message
	case said.Error.Code != "":
		out.name, out.message = said.Error.Code, said.Error.Message
	}
	out.message = strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", what, w.Status, strings.TrimSpace(out.message)), ": ")
	return out
}

// deliver sends a request until the coordinator acknowledges or refuses it, or ctx is done.
func (c *client) deliver(ctx context.Context, method, path string, in any) error {
	return c.repeat(ctx, path, func() error { return c.do(ctx, 0, method, path, in, nil) })
}

// repeat calls do until it succeeds, the coordinator refuses it, or ctx is done.
func (c *client) repeat(ctx context.Context, what string, do func() error) error {
	wait := firstWait
	var logged time.Time // the last reminder
	for {
		err := do()
		r, is := errors.AsType[*refused](err)
		switch {
		case err == nil:
			if !logged.IsZero() { // as loud as the reminders
				c.log.Warn("the coordinator answers again", "request", what)
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case unauthorized(err) && c.register != nil: // it has forgotten this runner
			rerr := c.register(ctx)
			switch {
			case rerr == nil && wait == firstWait:
				wait = 2 * firstWait
				continue
			case replaced(rerr): // by a program of another caller, or the coordinator would have said so at once
				return rerr
			case rerr != nil:
				err = rerr
			}
		case c.register == nil && replaced(err): // the place of a program that was killed is free soon
		case is && !r.again():
			return err
		}
		if now := time.Now(); now.Sub(logged) >= remindAfter {
			c.log.Warn(problem(err)+"; trying again", "request", what, "error", err)
			logged = now
		}
		if err := pause(ctx, wait/2+rand.N(wait)); err != nil { //nolint:gosec // spreads attempts
			return err
		}
		wait = min(2*wait, longestWait)
	}
}

// problem says what is wrong if a request is to be sent again.
func problem(err error) string {
	switch _, is := errors.AsType[*refused](err); {
	case replaced(err):
		return "this runner waits, because another program has its place, or has had it until it was killed"
	case unauthorized(err):
		return "the coordinator refuses the token of this runner, which may be revoked or expired"
	case is:
		return "the coordinator refuses a request"
	}
	return "the coordinator does not answer"
}

// pause waits, or returns the cause of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
