package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/gateway/internal/policy"
)

// ModelPolicy defines which model calls are passed on, and how they are changed.
type ModelPolicy struct {
	// Allow has the models that may be used, with the wildcards of path.Match: "claude-haiku-*". Empty means all.
	Allow []string `json:"allow,omitempty"`
	// Rewrite replaces models: the agent asks for the key and gets the value.
	Rewrite map[string]string `json:"rewrite,omitempty"`
	// Fallback maps a model to the model that answers when the first one's API is overloaded
	// (429) or fails (500 and above). Fallbacks are not chained.
	Fallback map[string]string `json:"fallback,omitempty"`
	// ProviderTools are tools that the API runs itself and that agents may use, such as
	// web_search, web_fetch and code_execution; "*" means all. The gateway removes all others
	// from calls, since they would let an agent reach the internet from a sandbox without a
	// network.
	ProviderTools []string `json:"provider_tools,omitempty"`
}

// rules returns the rules for package policy, with rewrite as the model replacements.
func (p ModelPolicy) rules(rewrite map[string]string) policy.Rules {
	return policy.Rules{ProviderTools: p.ProviderTools, Models: p.Allow, Rewrite: rewrite}
}

// Check returns an [ErrConfig] if the policy is invalid.
func (p ModelPolicy) Check() error {
	if err := p.rules(p.Rewrite).Check(); err != nil {
		return fmt.Errorf("%w: models: %w", ErrConfig, err)
	}
	return nil
}

// maxBuffered is how many bytes of request bodies a gateway holds at once.
const maxBuffered = 4 * maxBody

// calls applies the policy to model calls and counts them.
type calls struct {
	cfg    Config
	memory *semaphore.Weighted
	warned atomic.Bool // a warning about removed tools was logged
}

// modelCall is a model call that passed the policy.
type modelCall struct {
	policy.Call
	model  string
	counts bool // the model generates output, so the call counts as usage
}

type modelCallKey struct{}

// uncounted reports whether a path belongs to a call that only counts tokens.
func uncounted(path string) bool {
	return strings.HasSuffix(path, "/count_tokens") || strings.HasSuffix(path, ":countTokens")
}

// prepare returns the request to pass on in place of r. The caller must call the returned
// function after the answer, to release the memory of the body.
func (c *calls) prepare(r *http.Request, prefix string, up Upstream) (*http.Request, func(), error) {
	if r.Method != http.MethodPost {
		return r, func() {}, nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, nil, &policy.RefusedError{Message: "the body is compressed, and the gateway reads it; send it as it is"}
	}
	size := r.ContentLength
	if size < 0 || size > maxBody {
		size = maxBody
	}
	if err := c.memory.Acquire(r.Context(), size); err != nil {
		return nil, nil, err
	}
	release := func() { c.memory.Release(size) }
	out, err := c.read(r, prefix, up)
	if err != nil {
		release()
		return nil, nil, err
	}
	return out, release, nil
}

// read reads the call and applies the policy.
func (c *calls) read(r *http.Request, prefix string, up Upstream) (*http.Request, error) {
	var body bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(r.Body); err != nil {
		return nil, err
	}
	path := strings.TrimPrefix(r.URL.Path, prefix)
	call, model, removed, err := c.cfg.Models.rules(c.cfg.Models.Rewrite).Apply(policy.Call{API: up.API, Path: path, Body: body.Bytes()})
	if err != nil {
		return nil, err
	}
	if len(removed) > 0 && !c.warned.Swap(true) {
		c.cfg.Logger.Warn("tools that the model's API runs itself are removed; to allow them, name them in models.provider_tools", "tools", removed)
	}
	counts := !uncounted(path)
	if counts {
		if err := c.cfg.Meter.admit(r.Context(), model); err != nil {
			return nil, err
		}
	}
	return (&modelCall{Call: call, model: model, counts: counts}).request(r, prefix), nil
}

// request returns r with the body, path and context of the call.
func (m *modelCall) request(r *http.Request, prefix string) *http.Request {
	out := r.WithContext(context.WithValue(r.Context(), modelCallKey{}, m))
	at := *r.URL
	at.Path, at.RawPath = prefix+m.Path, ""
	out.URL, out.TransferEncoding = &at, nil
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(m.Body)), int64(len(m.Body))
	return out
}

// count adds the usage that the answer reports to the meter.
func (c *calls) count(up Upstream, resp *http.Response) {
	call, ok := resp.Request.Context().Value(modelCallKey{}).(*modelCall)
	if !ok || !call.counts || resp.StatusCode >= 300 {
		return
	}
	written := &counter{ReadCloser: resp.Body}
	resp.Body = written
	resp.Body = meter.Watch(up.API, resp, func(u meter.Usage, found bool) {
		if !found {
			// A call without reported usage is estimated at four bytes a token: an agent could
			// leave out the option that requests usage.
			u.InputTokens, u.OutputTokens = int64(len(call.Body)/4), written.n.Load()/4
		}
		c.cfg.Meter.count(call.model, u)
	})
}

// counter counts the bytes read from a body.
type counter struct {
	io.ReadCloser
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// fallback retries a failed call with the fallback model of the policy.
type fallback struct {
	policy ModelPolicy
	meter  *Meter
	send   func(*http.Request) (*http.Response, error)
}

// RoundTrip sends the call. If that fails, it sends the body once more with the fallback model.
func (f fallback) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.send(r)
	call, ok := r.Context().Value(modelCallKey{}).(*modelCall)
	if err != nil || !ok || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < http.StatusInternalServerError {
		return resp, err
	}
	if f.policy.Fallback[call.model] == "" {
		return resp, nil
	}
	other, model, _, err := f.policy.rules(f.policy.Fallback).Apply(call.Call)
	if err != nil || call.counts && f.meter.admit(r.Context(), model) != nil {
		return resp, nil //nolint:nilerr // the answer of the first model says more
	}
	_ = resp.Body.Close()
	again := &modelCall{Call: other, model: model, counts: call.counts}
	return f.send(again.request(r, strings.TrimSuffix(r.URL.Path, call.Path)))
}

// refuseCall answers a call that the gateway refuses.
func refuseCall(w http.ResponseWriter, r *http.Request, err error) {
	var refused *policy.RefusedError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("the request has more than %d MiB", maxBody>>20))
	case isBudget(err), errors.Is(err, ErrConfig):
		refuse(w, http.StatusForbidden, "billing_error", err.Error())
	case errors.As(err, &refused):
		refuse(w, http.StatusForbidden, "permission_error", refused.Error())
	case r.Context().Err() != nil: // the agent disconnected
	default:
		refuse(w, http.StatusBadRequest, "invalid_request_error", "the request's body cannot be read: "+err.Error())
	}
}
