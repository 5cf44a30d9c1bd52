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

// ModelPolicy says which calls of models are passed on, and how they are changed.
type ModelPolicy struct {
	// Allow has the models that may be used, with the wildcards of path.Match: "claude-haiku-*". Empty means all.
	Allow []string `json:"allow,omitempty"`
	// Rewrite replaces models: the agent asks for the key and gets the value.
	Rewrite map[string]string `json:"rewrite,omitempty"`
	// Fallback has the model that answers in place of one whose API is overloaded (429) or fails
	// (500 and above). That of a fallback is not asked.
	Fallback map[string]string `json:"fallback,omitempty"`
	// ProviderTools are tools that the API runs itself and that agents may use, such as
	// web_search, web_fetch and code_execution; "*" is all. Others are removed from calls,
	// since with them an agent reaches the internet from a sandbox without a network.
	ProviderTools []string `json:"provider_tools,omitempty"`
}

// rules are those of the package that applies them, with other models in place of some.
func (p ModelPolicy) rules(rewrite map[string]string) policy.Rules {
	return policy.Rules{ProviderTools: p.ProviderTools, Models: p.Allow, Rewrite: rewrite}
}

// Check returns an [ErrConfig] for a policy that makes no sense.
func (p ModelPolicy) Check() error {
	if err := p.rules(p.Rewrite).Check(); err != nil {
		return fmt.Errorf("%w: models: %w", ErrConfig, err)
	}
	return nil
}

// maxBuffered is how much of the bodies of requests a gateway holds at once, in bytes.
const maxBuffered = 4 * maxBody

// calls passes on calls of models: it applies the policy and counts.
type calls struct {
	cfg    Config
	memory *semaphore.Weighted
	warned atomic.Bool // that tools are removed
}

// modelCall is a call that is passed on.
type modelCall struct {
	policy.Call
	model  string
	counts bool // it makes a model write
}

type modelCallKey struct{}

// uncounted are the ends of paths that only count tokens.
func uncounted(path string) bool {
	return strings.HasSuffix(path, "/count_tokens") || strings.HasSuffix(path, ":countTokens")
}

// prepare returns the request that is passed on in place of r, and what to call when it has
// been answered.
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

// request returns r with the call.
func (m *modelCall) request(r *http.Request, prefix string) *http.Request {
	out := r.WithContext(context.WithValue(r.Context(), modelCallKey{}, m))
	at := *r.URL
	at.Path, at.RawPath = prefix+m.Path, ""
	out.URL, out.TransferEncoding = &at, nil
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(m.Body)), int64(len(m.Body))
	return out
}

// count counts what the answer says that the call has used.
func (c *calls) count(up Upstream, resp *http.Response) {
	call, ok := resp.Request.Context().Value(modelCallKey{}).(*modelCall)
	if !ok || !call.counts || resp.StatusCode >= 300 {
		return
	}
	written := &counter{ReadCloser: resp.Body}
	resp.Body = written
	resp.Body = meter.Watch(up.API, resp, func(u meter.Usage, found bool) {
		if !found {
			// An agent could leave out what asks for it. Four bytes are about a token.
			u.InputTokens, u.OutputTokens = int64(len(call.Body)/4), written.n.Load()/4
		}
		c.cfg.Meter.count(call.model, u)
	})
}

// counter counts what is read.
type counter struct {
	io.ReadCloser
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// fallback asks another model where the policy has one.
type fallback struct {
	policy ModelPolicy
	meter  *Meter
	send   func(*http.Request) (*http.Response, error)
}

// RoundTrip asks once more, with the body of the call and the other model.
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

// refuseCall answers a call that is not passed on.
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
	case r.Context().Err() != nil: // the agent has gone
	default:
		refuse(w, http.StatusBadRequest, "invalid_request_error", "the request's body cannot be read: "+err.Error())
	}
}
