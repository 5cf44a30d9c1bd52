package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
)

const (
	// maxError limits the body of an error, in bytes.
	maxError = 64 << 10
	// firstWait and lastWait are how long a call waits before it tries again.
	firstWait = 50 * time.Millisecond
	lastWait  = 2 * time.Second
)

// get reads something.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodGet, path: path, query: query}, out)
}

// change makes a change. The server makes it once, however often it is sent.
func (c *Client) change(ctx context.Context, method, path string, in, out any) error {
	return c.changeUnder(ctx, rand.Text(), method, path, in, out)
}

// changeUnder makes a change under a key of its caller.
func (c *Client) changeUnder(ctx context.Context, key, method, path string, in, out any) error {
	r := request{method: method, path: path, key: key}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body = body
	}
	return c.call(ctx, r, out)
}

// request is a call that can be sent again.
type request struct {
	method, path string
	query        url.Values
	key          string // of a change
	body         []byte
}

// call sends a request until there is an answer, and decodes it.
func (c *Client) call(ctx context.Context, r request, out any) error {
	var answer []byte
	err := c.retry(ctx, func() error {
		res, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }() // it was only read
		if answer, err = io.ReadAll(res.Body); err != nil {
			return &broken{err}
		}
		if out == nil && res.StatusCode != http.StatusNoContent {
			return noAnswer(res)
		}
		return nil
	})
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: the answer of the server cannot be read: %w", r.method, r.path, err)
	}
	return nil
}

// broken is a connection that failed: to try again makes sense.
type broken struct{ err error }

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

// retry calls f until it returns no [broken], or there was no connection for c.patience. A server that was never reached is
// not waited for.
func (c *Client) retry(ctx context.Context, f func() error) error {
	tries := c.tries()
	for {
		err := f()
		failed, again := errors.AsType[*broken](err)
		if !again {
			return err
		}
		if dial, ok := errors.AsType[*net.OpError](failed.err); ok && dial.Op == "dial" && !c.reached.Load() {
			return unreachable(failed) // most likely it is another address
		}
		if err := tries.next(ctx, err); err != nil {
			return err
		}
	}
}

// tries spaces attempts.
type tries struct {
	client  *Client
	wait    time.Duration
	failing time.Time // since when there is no connection; zero if there is one
	atOnce  bool
}

func (c *Client) tries() *tries { return &tries{client: c} }

// received notes that the connection works: when it breaks the next attempt follows at once.
func (t *tries) received() { t.failing, t.wait, t.atOnce = time.Time{}, 0, true }

// next waits for the next attempt. It returns an error when there is to be none.
func (t *tries) next(ctx context.Context, failed error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if t.failing.IsZero() {
		t.failing = time.Now()
	}
	if time.Since(t.failing) >= t.client.patience {
		t.client.reached.Store(false) // the next call does not wait
		return unreachable(failed)
	}
	if t.atOnce {
		t.atOnce = false
		return nil
	}
	if t.wait == 0 {
		t.client.log.Warn("no connection to the server; trying again", "for", t.client.patience, "error", errors.Unwrap(failed))
	}
	t.wait = min(max(t.wait*2, firstWait), lastWait)
	timer := time.NewTimer(t.wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unreachable returns the error for a connection that failed.
func unreachable(failed error) error {
	return fmt.Errorf("%w: %w", ErrUnreachable, errors.Unwrap(failed))
}

// send sends a request once. An answer that is an error becomes one.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := c.request(ctx, r.method, r.path, r.query, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set(sessionapi.KeyHeader, r.key)
	}
	return c.do(req)
}

func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// do makes a request once. The caller closes the body of the answer.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	res, err := c.http.Do(req)
	if err != nil {
		if ctx := req.Context(); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err) // the same would happen again
		}
		return nil, &broken{err}
	}
	c.reached.Store(true)
	if res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	var said apierror.Body
	switch {
	case err != nil:
		return nil, &broken{err}
	case json.Unmarshal(data, &said) == nil && said.Error.Code != "":
		err := sessionapi.Codes().Err(said.Error)
		if res.Header.Get("Retry-After") != "" && res.StatusCode == http.StatusServiceUnavailable {
			return nil, &broken{err} // the session moves to another server, or the store is away
		}
		return nil, err
	case res.StatusCode >= 500: // of something between here and the server
		return nil, &broken{fmt.Errorf("%s %s: %s", req.Method, req.URL.Redacted(), res.Status)}
	}
	return nil, noAnswer(res)
}

// noAnswer returns the error for an answer that an agentenv server does not give.
func noAnswer(res *http.Response) error {
	return fmt.Errorf("%s %s: %s, which is no answer of an agentenv server", res.Request.Method, res.Request.URL.Redacted(), res.Status)
}
