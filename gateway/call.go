package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	// network. Without web_fetch it refuses calls with addresses that the API would fetch, such
	// as that of an image; inline data and uploaded files pass.
	ProviderTools []string `json:"provider_tools,omitempty"`
}

// rules returns the rules for package policy, with rewrite as the model replacements.
func (p ModelPolicy) rules(rewrite map[string]string, m *Meter) policy.Rules {
	return policy.Rules{ProviderTools: p.ProviderTools, Models: p.Allow, Rewrite: rewrite, Metered: m.countsTokens()}
}

// Check returns an [ErrConfig] if the policy is invalid.
func (p ModelPolicy) Check() error {
	if err := p.rules(p.Rewrite, nil).Check(); err != nil {
		return fmt.Errorf("%w: models: %w", ErrConfig, err)
	}
	return nil
}

// calls applies the policy to model calls and counts them.
type calls struct {
	cfg    Config
	share  *share
	warned atomic.Bool // a warning about removed tools was logged
	// largest is the largest input that an answer has reported, in tokens.
	largest atomic.Int64
}

// modelCall is a model call that passed the policy.
type modelCall struct {
	policy.Passed
	size   int       // of the body
	counts bool      // the model generates output, so the call counts as usage
	began  time.Time // when it was sent
	free   func()    // releases the memory of the body
}

type modelCallKey struct{}

// uncounted reports whether a path belongs to a call that only counts tokens.
func uncounted(path string) bool {
	return strings.HasSuffix(path, "/count_tokens") || strings.HasSuffix(path, ":countTokens")
}

// prepare returns the request to pass on in place of r. The caller must call the returned
// function after the answer.
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
	free, err := c.share.acquire(r.Context(), size)
	if err != nil {
		return nil, nil, err
	}
	call, err := c.read(r, strings.TrimPrefix(r.URL.Path, prefix), up)
	if err != nil {
		free()
		return nil, nil, err
	}
	call.free = free
	return call.request(r, prefix), free, nil
}

// maxRecorded is how many bytes a call may have that is recorded or replayed: to find the form in
// which it is compared takes a quarter of a second for each MiB.
const maxRecorded = 8 << 20

// read reads the call and applies the policy.
func (c *calls) read(r *http.Request, path string, up Upstream) (*modelCall, error) {
	var body bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(r.Body); err != nil {
		return nil, err
	}
	if body.Len() > maxRecorded && (c.cfg.Record != nil || c.cfg.Replay != nil) {
		return nil, &policy.RefusedError{Message: fmt.Sprintf("a call that is recorded or replayed has at most %d MiB; send less at once, or leave out record and replay", maxRecorded>>20)}
	}
	call := &modelCall{counts: !uncounted(path)}
	err := c.share.read(r.Context(), body.Len(), func(ctx context.Context) (err error) {
		rules := c.cfg.Models.rules(c.cfg.Models.Rewrite, c.cfg.Meter)
		call.Passed, err = rules.Apply(ctx, policy.Call{API: up.API, Path: path, Body: body.Bytes()})
		return err
	})
	if err != nil {
		return nil, err
	}
	call.size = len(call.Body)
	if len(call.Removed) > 0 && !c.warned.Swap(true) {
		c.cfg.Logger.Warn("tools that the model's API runs itself are removed; to allow them, name them in models.provider_tools", "tools", call.Removed[:min(len(call.Removed), 16)])
	}
	if call.counts {
		if err := c.cfg.Meter.admit(r.Context(), call.Model); err != nil {
			return nil, err
		}
	}
	return call, nil
}

// request returns r with the body, path and context of the call.
func (m *modelCall) request(r *http.Request, prefix string) *http.Request {
	out := r.WithContext(context.WithValue(r.Context(), modelCallKey{}, m))
	at := *r.URL
	at.Path, at.RawPath = prefix+m.Path, ""
	out.URL, out.TransferEncoding = &at, nil
	out.Body, out.ContentLength = &sent{rest: m.Body}, int64(len(m.Body))
	return out
}

// answered frees the memory of the body. Nothing reads it once its answer begins.
func (m *modelCall) answered() {
	m.Body = nil
	m.free()
}

// sent is a body that is sent. When it has been sent, it does not hold its bytes.
type sent struct {
	mu   sync.Mutex // the transport may close it while it reads
	rest []byte
}

func (s *sent) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rest) == 0 {
		s.rest = nil
		return 0, io.EOF
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *sent) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = nil
	return nil
}

// count adds the usage that the answer reports to the meter.
func (c *calls) count(up Upstream, resp *http.Response) {
	call, ok := resp.Request.Context().Value(modelCallKey{}).(*modelCall)
	if !ok || !call.counts || resp.StatusCode >= 300 {
		return
	}
	written := &counter{ReadCloser: resp.Body}
	resp.Body = written
	perToken := int64(bytesPerToken)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		perToken = streamBytesPerToken
	}
	resp.Body = meter.Watch(up.API, resp, func(u meter.Usage, exact bool) {
		if exact {
			c.sawInput(u.TotalInput())
		} else {
			call.estimate(&u, written.n.Load()/perToken, time.Since(call.began), c.largest.Load())
		}
		c.cfg.Meter.count(call.Model, u)
	})
}

// sawInput raises largest.
func (c *calls) sawInput(tokens int64) {
	for was := c.largest.Load(); tokens > was && !c.largest.CompareAndSwap(was, tokens); was = c.largest.Load() {
	}
}

// How an answer that does not report its usage is counted, see [modelCall.estimate]. An event of
// a stream has about a hundred bytes beside its few tokens.
const (
	bytesPerToken       = 4
	streamBytesPerToken = 16
	tokensPerSecond     = 100
)

// estimate completes the usage of a call whose answer reports none, or was cut before it. An
// agent could leave out the option that requests the usage, or disconnect. Models think and
// write at some 100 tokens a second, also what the agent does not see; text is what it has seen.
// largest is the largest input of an earlier call, for a conversation that the API has stored.
func (m *modelCall) estimate(u *meter.Usage, text int64, took time.Duration, largest int64) {
	if u.TotalInput() == 0 {
		u.InputTokens = int64(m.size / bytesPerToken)
		if m.Stored {
			u.InputTokens = max(u.InputTokens, largest)
		}
	}
	output := max(text, int64(took.Seconds()*tokensPerSecond)*m.Answers)
	if m.MaxOutput > 0 {
		output = min(output, m.MaxOutput*m.Answers)
	}
	u.OutputTokens = max(u.OutputTokens, output)
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

// sender sends calls to an API, and retries a failed call with the fallback model of the policy.
type sender struct {
	calls *calls
	send  func(*http.Request) (*http.Response, error)
}

// RoundTrip sends the call. If that fails, it sends the body once more with the fallback model.
// When it returns, the call's body is freed.
func (s sender) RoundTrip(r *http.Request) (*http.Response, error) {
	call, ok := r.Context().Value(modelCallKey{}).(*modelCall)
	if !ok {
		return s.send(r)
	}
	defer call.answered()
	resp, err := s.try(r, call)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < http.StatusInternalServerError {
		return resp, err
	}
	cfg := s.calls.cfg
	if cfg.Models.Fallback[call.Model] == "" {
		return resp, nil
	}
	again := &modelCall{counts: call.counts, free: call.free}
	err = s.calls.share.read(r.Context(), call.size, func(ctx context.Context) (err error) {
		again.Passed, err = cfg.Models.rules(cfg.Models.Fallback, cfg.Meter).Apply(ctx, call.Call)
		return err
	})
	if err != nil || call.counts && cfg.Meter.admit(r.Context(), again.Model) != nil {
		return resp, nil //nolint:nilerr // the answer of the first model says more
	}
	_ = resp.Body.Close()
	again.size = len(again.Body)
	defer again.answered()
	return s.try(again.request(r, strings.TrimSuffix(r.URL.Path, call.Path)), again)
}

// try sends the call once. It counts a call that the agent abandons before its answer begins.
func (s sender) try(r *http.Request, call *modelCall) (*http.Response, error) {
	call.began = time.Now()
	resp, err := s.send(r)
	if err != nil && r.Context().Err() != nil && call.counts {
		var u meter.Usage
		call.estimate(&u, 0, time.Since(call.began), s.calls.largest.Load())
		s.calls.cfg.Meter.count(call.Model, u)
	}
	return resp, err
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
	case errors.Is(err, errBusy):
		refuse(w, http.StatusServiceUnavailable, "overloaded_error", err.Error())
	case errors.As(err, &refused):
		refuse(w, http.StatusForbidden, "permission_error", refused.Error())
	case r.Context().Err() != nil: // the agent disconnected
	default:
		refuse(w, http.StatusBadRequest, "invalid_request_error", "the request's body cannot be read: "+err.Error())
	}
}
