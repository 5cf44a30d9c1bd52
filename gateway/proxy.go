package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/gateway/internal/hold"
	"github.com/agentenv-dev/agentenv/internal/secret"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// routes maps names to upstreams.
type routes map[string]http.Handler

// ServeHTTP selects the upstream by the first element of the path. It rejects ambiguous paths:
// see allowed.
func (rs routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if h := rs[name]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	refuse(w, http.StatusNotFound, "not_found_error", "the gateway has no such upstream; name the credential in the configuration")
}

// endpoint is an allowed method with its allowed paths.
type endpoint struct {
	method string
	path   *regexp.Regexp
}

const oneModel = `[A-Za-z0-9_][A-Za-z0-9_.-]*`

var endpoints = map[runnerscripts.ModelAPI][]endpoint{
	runnerscripts.APIAnthropic: {
		{http.MethodPost, regexp.MustCompile(`^/v1/messages(/count_tokens)?$`)},
		{http.MethodGet, regexp.MustCompile(`^/v1/models(/` + oneModel + `)?$`)},
	},
	runnerscripts.APIOpenAI: {
		{http.MethodPost, regexp.MustCompile(`^/(responses|responses/compact|chat/completions)$`)},
		{http.MethodGet, regexp.MustCompile(`^/models(/` + oneModel + `)?$`)},
	},
	runnerscripts.APIGemini: {
		{http.MethodPost, regexp.MustCompile(`^/v1(beta|alpha)?/models/` + oneModel + `:(generateContent|streamGenerateContent|countTokens)$`)},
		{http.MethodGet, regexp.MustCompile(`^/v1(beta|alpha)?/models(/` + oneModel + `)?$`)},
	},
}

// allowed reports whether a request matches an endpoint of the API. It compares the encoded
// path, so that an encoding cannot hide a forbidden path.
func allowed(api runnerscripts.ModelAPI, method, path string) bool {
	for _, c := range endpoints[api] {
		if c.method == method && c.path.MatchString(path) {
			return true
		}
	}
	return false
}

// proxy returns the handler of an upstream.
func (g *Gateway) proxy(name string, up Upstream, through *calls) (http.Handler, error) {
	if !namePattern.MatchString(name) {
		return nil, fmt.Errorf("%w: upstream %q: its name has other characters than letters, digits, '_', '.' and '-'", ErrConfig, name)
	}
	base, err := up.baseURL(name)
	if err != nil {
		return nil, err
	}
	if !isKey(up.Key) {
		return nil, fmt.Errorf("%w: upstream %q: its key is empty or has characters that no key has, such as a line break", ErrConfig, name)
	}
	logger := g.cfg.Logger.With("upstream", name)
	forward := &httputil.ReverseProxy{
		Transport:     sender{through, g.sender(name, up, base)},
		FlushInterval: -1, // do not buffer event streams
		ErrorLog:      g.cfg.Logger.StandardLogger(nil),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, "/"+name)
			p.Out.URL.RawPath = ""
			p.SetURL(base)
			up.sign(p.Out)
		},
		ModifyResponse: func(resp *http.Response) error {
			through.count(up, resp)
			if err := up.inspect(resp); err != nil {
				return err
			}
			g.hold(up, resp)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the agent disconnected
			}
			if missing, ok := errors.AsType[*NoMatchError](err); ok {
				refuse(w, http.StatusUnprocessableEntity, "invalid_request_error", missing.Error())
				return
			}
			cause := up.redact(err.Error())
			logger.Warn("the model's API cannot be reached", "error", cause)
			refuse(w, http.StatusBadGateway, "api_error", fmt.Sprintf("the gateway cannot reach the API at %s: %s", base.Host, cause))
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.EscapedPath(), "/"+name)
		switch {
		case r.Method == http.MethodHead && strings.Trim(path, "/") == "":
			return // some agents probe the gateway without a token
		case !g.admit(tokenOf(r)):
			logger.Warn("request refused", "reason", "token", "method", r.Method)
			refuse(w, http.StatusUnauthorized, "authentication_error", "the request has no valid token of this session")
		case !allowed(up.API, r.Method, path) || r.Header.Get("Upgrade") != "":
			logger.Warn("request refused", "reason", "path", "method", r.Method)
			refuse(w, http.StatusForbidden, "permission_error", "the gateway does not pass on this method and path of the API")
		default:
			leave, ok := enter(r.Context(), g.slots)
			if !ok {
				return
			}
			defer leave()
			r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), deadline: http.NewResponseController(w).SetReadDeadline, limit: callTime(r.ContentLength)}
			call, end, err := through.prepare(r, "/"+name, up)
			if err != nil {
				logger.Warn("request refused", "reason", err.Error(), "method", r.Method)
				refuseCall(w, r, err)
				return
			}
			defer end()
			forward.ServeHTTP(&answer{ResponseWriter: w, timeout: g.writeTimeout}, call)
		}
	}), nil
}

// keyHeaders returns the headers in which agents send keys, and other headers that must not
// reach the API.
func keyHeaders() []string {
	return []string{
		"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization", "Accept-Encoding", "Forwarded",
		"X-Http-Method-Override", "X-Goog-Fieldmask",
	}
}

// tokenOf returns the token from the header in which the agent sends its key.
func tokenOf(r *http.Request) string {
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return token
	}
	for _, token := range []string{r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key")} {
		if token != "" {
			return token
		}
	}
	return r.URL.Query().Get("key")
}

// sign sets the key in the header that the API expects, and removes all other keys.
func (u Upstream) sign(r *http.Request) {
	for _, name := range keyHeaders() {
		r.Header.Del(name)
	}
	if r.Method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json") // as which the policy has read it
	}
	query := r.URL.Query()
	query.Del("key")
	if u.API == runnerscripts.APIGemini {
		// Others could replace the content type and the method, or leave the usage out of the answer.
		maps.DeleteFunc(query, func(name string, _ []string) bool { return name != "alt" && name != "pageSize" && name != "pageToken" })
	}
	r.URL.RawQuery = query.Encode()
	switch u.API {
	case runnerscripts.APIAnthropic:
		r.Header.Set("X-Api-Key", u.Key)
	case runnerscripts.APIOpenAI:
		r.Header.Set("Authorization", "Bearer "+u.Key)
	case runnerscripts.APIGemini:
		r.Header.Set("X-Goog-Api-Key", u.Key)
	}
}

// redact replaces the key in a text, unless it is too short for that.
func (u Upstream) redact(text string) string {
	if len(u.Key) < secret.Shortest {
		return text
	}
	return strings.ReplaceAll(text, u.Key, "[redacted]")
}

// maxErrorBody is how many bytes of an error body are passed on.
const maxErrorBody = 1 << 20

// inspect rejects redirects and protocol upgrades, and removes the key from headers and error
// bodies that repeat it.
func (u Upstream) inspect(resp *http.Response) error {
	resp.Header.Del("Set-Cookie")
	for _, values := range resp.Header {
		for i, v := range values {
			values[i] = u.redact(v)
		}
	}
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400, resp.StatusCode == http.StatusSwitchingProtocols:
		return fmt.Errorf("it answered %d and leads elsewhere; correct its URL in the configuration", resp.StatusCode)
	case resp.StatusCode < 300:
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	data = []byte(u.redact(string(data)))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	resp.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}

// hold holds the tool calls in an answer.
func (g *Gateway) hold(up Upstream, resp *http.Response) {
	call, ok := resp.Request.Context().Value(modelCallKey{}).(*modelCall)
	if g.cfg.Hold == nil || !ok || !call.counts || resp.StatusCode >= 300 {
		return
	}
	ctx := resp.Request.Context()
	resp.Body = hold.Answer(up.API, resp.Request.URL.Path, resp.Header.Get("Content-Type"), resp.Body, func(tool string, input json.RawMessage) string {
		return g.cfg.Hold(ctx, tool, input)
	})
	resp.ContentLength = -1
	resp.Header.Del("Content-Length")
}

// body limits the time between two parts of a request body, and of the whole.
type body struct {
	io.ReadCloser
	deadline func(time.Time) error
	limit    time.Duration // of the whole; zero means none
	by       time.Time     // set by the first Read
}

// callTime returns how long the body of a model call may take. It holds memory that calls of other
// sessions wait for, which they do for a minute.
func callTime(size int64) time.Duration {
	if size < 0 || size > maxBody {
		size = maxBody
	}
	return 20*time.Second + time.Duration(size>>20)*time.Second/2
}

func (b *body) Read(p []byte) (int, error) {
	by := time.Now().Add(bodyTimeout)
	if b.limit > 0 {
		if b.by.IsZero() {
			b.by = time.Now().Add(b.limit)
		}
		if b.by.Before(by) {
			by = b.by
		}
	}
	_ = b.deadline(by)
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) { // after another error the server waits for the rest
		_ = b.deadline(time.Time{}) // otherwise the deadline would also end the answer
	}
	return n, err
}

// answer limits how long an agent may leave a part of an answer unread.
type answer struct {
	http.ResponseWriter
	timeout time.Duration
}

func (a *answer) Write(p []byte) (int, error) {
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.timeout))
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController, which flushes.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// refuse answers with an error in a form that the clients of all APIs understand.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Should-Retry", strconv.FormatBool(status >= http.StatusInternalServerError))
	w.WriteHeader(status)
	type failure struct {
		Type    string `json:"type"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": failure{kind, status, "agentenv: " + message}})
}
