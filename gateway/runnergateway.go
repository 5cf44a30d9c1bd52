package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordinator"
	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
	"github.com/agentenv-dev/agentenv/internal/secret"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	coordinatorTimeout = 30 * time.Second // for an answer of the coordinator that is no stream
	maxCall            = 16 << 20         // of a request to the coordinator, in bytes
	maxReply           = 16 << 20         // of an answer that is no stream, in bytes
)

var (
	// errNoAnswer is the cause of a request that the coordinator does not answer in time.
	errNoAnswer = errors.New("the coordinator does not answer")
	errListing  = errors.New("the coordinator's list of sessions has another form or is too long")
)

// runnerGateway passes requests of executors on to the coordinator. Executors own
// executor_session_id and project_dir; the runner owns hostname and executor_profile.
type runnerGateway struct {
	*Coordination
	gateway *Gateway
	forward *httputil.ReverseProxy
	timeout time.Duration // coordinatorTimeout, except in tests

	refused, absent sync.Once // of explain
}

// coordinatorCall is what the answer to a request needs.
type coordinatorCall struct {
	timer   *time.Timer // ends the request
	listing bool        // the answer is a list of sessions
	free    func()      // releases the memory of the body
}

type coordinatorCallKey struct{}

func newRunnerGateway(g *Gateway, c *Coordination) *runnerGateway {
	u := &runnerGateway{Coordination: c, gateway: g, timeout: coordinatorTimeout}
	u.forward = &httputil.ReverseProxy{
		Transport: coordinator.NewTransport(c.base, c.auth, &keyReport{g.transport, g.cfg.OnKey}),
		ErrorLog:  g.cfg.Logger.StandardLogger(nil),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(c.base)
			for _, name := range append(keyHeaders(), "Referer") { // which may have the token
				p.Out.Header.Del(name)
			}
			query := p.Out.URL.Query()
			if query.Has("api_key") { // coordinators take a token there
				query.Del("api_key")
				p.Out.URL.RawQuery = query.Encode()
			}
		},
		ModifyResponse: u.inspect,
		ErrorHandler:   u.failed,
	}
	return u
}

// keyReport reports requests with a key to Config.OnKey: those to the coordinator, and those for a token.
type keyReport struct {
	http.RoundTripper
	onKey func(upstream, method, path string) // nil for none
}

func (t *keyReport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.onKey != nil && r.Header.Get("Authorization") != "" {
		t.onKey("coordinator", r.Method, r.URL.Path)
	}
	return t.RoundTripper.RoundTrip(r)
}

// ServeHTTP checks the token of a request and passes the request on. The token is the first
// element of the path, for clients that send no authorization, or that of the Authorization
// header.
func (u *runnerGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), runnerscripts.CoordinatorPath)
	token := tokenOf(r)
	if first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); len(first) == len(u.gateway.cfg.Token) {
		token, path = first, "/"+rest
	}
	if !u.gateway.admit(token) {
		if u.gateway.isForeign(token) {
			u.refuse(w, r, http.StatusForbidden, "token of another session", "the token is that of another session")
			return
		}
		u.refuse(w, r, http.StatusUnauthorized, "token", "the request has no valid token of this session; use AGENT_ORCHESTRATOR_API_URL as it is")
		return
	}
	leave, ok := enter(r.Context(), u.gateway.slots)
	if !ok {
		return
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	call := &coordinatorCall{free: func() {}}
	defer func() { call.free() }()
	out := r.WithContext(context.WithValue(ctx, coordinatorCallKey{}, call))
	out.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxCall), deadline: http.NewResponseController(w).SetReadDeadline, limit: callTime(r.ContentLength)}
	if err := u.route(out, path, call); err != nil {
		u.refuseCall(w, out, err)
		return
	}
	call.timer = time.AfterFunc(u.timeout, func() { cancel(errNoAnswer) })
	defer call.timer.Stop()
	u.forward.ServeHTTP(&answer{ResponseWriter: w, timeout: u.gateway.writeTimeout}, out)
}

// refusal is a request that the gateway does not pass on.
type refusal struct {
	status int
	detail string // for the executor
}

func (r *refusal) Error() string { return r.detail }

func bad(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func forbidden(format string, args ...any) error {
	return &refusal{http.StatusForbidden, fmt.Sprintf(format, args...)}
}

var elementPattern = regexp.MustCompile(`^[A-Za-z0-9_~-][A-Za-z0-9_.~-]*$`)

// route changes a request to that for the coordinator. path is that of the request at the
// gateway, encoded.
func (u *runnerGateway) route(r *http.Request, path string, call *coordinatorCall) error {
	if r.Header.Get("Upgrade") != "" {
		return forbidden("the gateway does not pass on upgrades")
	}
	own := "/sessions/" + u.session
	to, rewrite := path, (func(fields) ([]byte, error))(nil)
	switch r.Method + " " + path {
	case "POST /bind":
		to, rewrite = own+"/bind", u.bind
	case "POST /events":
		to, rewrite = own+"/events", func(fields) ([]byte, error) { return nil, nil }
	case "PATCH /metadata":
		to, rewrite = own+"/metadata", u.metadata
	default:
		if err := u.admitPath(r, path); err != nil {
			return err
		}
		call.listing = r.Method == http.MethodGet && path == "/sessions"
	}
	data, err := u.read(r, call, rewrite)
	if err != nil {
		return err
	}
	r.URL = &url.URL{Path: to, RawQuery: r.URL.RawQuery}
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, int64(len(data)), nil
	if len(data) > 0 {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		r.Body = io.NopCloser(bytes.NewReader(data))
	}
	if rewrite != nil {
		r.URL.RawQuery = ""
		r.Header.Set("Content-Type", "application/json")
	}
	return nil
}

// admitPath returns an error for a request that is not allowed or that names another session.
func (u *runnerGateway) admitPath(r *http.Request, path string) error {
	elements := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, e := range elements {
		if !elementPattern.MatchString(e) { // an encoding could hide another path
			return forbidden("the gateway does not pass on this path")
		}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return bad("Invalid query: %v", err)
	}
	for _, name := range []string{"session_id", "parent_session_id"} {
		for _, id := range query[name] {
			if id != u.session {
				return forbidden("%s is that of another session", name)
			}
		}
	}
	switch {
	case elements[0] == "sessions" && len(elements) > 1 && elements[1] != u.session:
		return forbidden("the path is that of another session")
	case elements[0] == "sessions" && len(elements) > 2 && (elements[2] == "bind" || elements[2] == "metadata"):
		return forbidden("the gateway adds to this request what the runner owns; send it to /%s", elements[2])
	case path == "/sse/sessions" && !query.Has("session_id"):
		return forbidden("the events are those of all sessions; add ?session_id=%s", u.session)
	case !slices.ContainsFunc(u.rules, func(allowed rule) bool { return allowed.matches(r.Method, elements) }):
		return forbidden("the gateway does not pass on %s requests to this path; the runner's configuration can allow it in coordinator.allow", r.Method)
	}
	return nil
}

// fields are the fields of a JSON object.
type fields map[string]json.RawMessage

// has reports whether a field has a value.
func (f fields) has(name string) bool {
	v := string(f[name])
	return v != "" && v != "null" && v != `""`
}

// read reads and checks the body of a request, and returns the one to send. A nil rewrite is for
// requests that are passed on as they are, which need no body; a nil result of rewrite for an
// unchanged body.
func (u *runnerGateway) read(r *http.Request, call *coordinatorCall, rewrite func(fields) ([]byte, error)) ([]byte, error) {
	size := r.ContentLength
	if size < 0 || size > maxCall {
		size = maxCall
	}
	free, err := u.gateway.share.acquire(r.Context(), size)
	if err != nil {
		return nil, err
	}
	call.free = free
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") && len(data) > 0 {
		return nil, bad("the body is compressed, and the gateway reads it; send it as it is")
	}
	if len(data) == 0 {
		if rewrite != nil {
			return nil, bad("Request body required")
		}
		return nil, nil
	}
	var f fields
	err = u.gateway.share.read(r.Context(), len(data), func(context.Context) error {
		if err := json.Unmarshal(data, &f); err != nil && (rewrite != nil || !json.Valid(data)) {
			return bad("Invalid JSON: %v", err)
		}
		if err := jsonkeys.Unique(data); err != nil { // the coordinator could take the other one
			return bad("Invalid JSON: %v", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for key := range f {
		for _, name := range []string{"session_id", "parent_session_id"} {
			if key != name && strings.EqualFold(key, name) { // a coordinator may take one for the other
				return nil, bad("write %s for %s", name, key)
			}
		}
	}
	if rewrite != nil && !f.has("session_id") {
		return nil, bad("session_id required")
	}
	for _, name := range []string{"session_id", "parent_session_id"} {
		if f.has(name) && !u.isOwn(f[name]) {
			return nil, forbidden("%s is that of another session", name)
		}
	}
	if rewrite == nil {
		return data, nil
	}
	changed, err := rewrite(f)
	if err != nil || changed == nil {
		return data, err
	}
	return changed, nil
}

// isOwn reports whether a value is the ID of the token's session.
func (u *runnerGateway) isOwn(value json.RawMessage) bool {
	var id string
	return json.Unmarshal(value, &id) == nil && id == u.session
}

// bind returns the body with which an executor binds to its session.
func (u *runnerGateway) bind(f fields) ([]byte, error) {
	if !f.has("executor_session_id") {
		return nil, bad("executor_session_id required")
	}
	out := map[string]any{"executor_session_id": f["executor_session_id"], "hostname": u.hostname, "executor_profile": u.profile}
	if f.has("project_dir") {
		out["project_dir"] = f["project_dir"]
	}
	return json.Marshal(out)
}

// metadata returns the fields of a change that executors own.
func (u *runnerGateway) metadata(f fields) ([]byte, error) {
	out := fields{}
	for _, name := range []string{"last_resumed_at", "executor_session_id", "project_dir"} {
		if v, ok := f[name]; ok {
			out[name] = v
		}
	}
	return json.Marshal(out)
}

// inspect reads an answer that is no stream, so that a failure meanwhile is an answer too. It
// removes the key from headers and from such an answer.
func (u *runnerGateway) inspect(resp *http.Response) error {
	call, _ := resp.Request.Context().Value(coordinatorCallKey{}).(*coordinatorCall)
	call.free()
	u.explain(resp)
	resp.Header.Del("Set-Cookie")
	_, key, _ := strings.Cut(resp.Request.Header.Get("Authorization"), " ")
	for _, values := range resp.Header {
		for i, v := range values {
			values[i] = redactKey(v, key)
		}
	}
	listing := call.listing && resp.StatusCode < http.StatusMultipleChoices
	if !listing && (resp.ContentLength < 0 || resp.ContentLength > maxReply) {
		call.timer.Stop()
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return err
	}
	if listing {
		if data, err = u.ownSessions(data); err != nil {
			return err
		}
	}
	data = []byte(redactKey(string(data), key))
	_ = resp.Body.Close()
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	if resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusNotModified {
		resp.Header.Set("Content-Length", strconv.Itoa(len(data)))
	}
	return nil
}

// explain logs what a refusal of the coordinator says about the configuration, which the executor cannot mend; each once.
func (u *runnerGateway) explain(resp *http.Response) {
	log := u.gateway.cfg.Logger
	switch of := strings.TrimSuffix(u.base.Path, "/") + "/sessions/" + u.session; {
	case resp.StatusCode == http.StatusUnauthorized && u.auth.OAuth2 != nil:
		u.refused.Do(func() {
			log.Warn("the coordinator refuses the tokens of coordinator.oauth2: check its audience and scopes")
		})
	case resp.StatusCode == http.StatusUnauthorized:
		u.refused.Do(func() {
			log.Warn("the coordinator refuses the key of this program: set another one in coordinator.credential")
		})
	case resp.StatusCode == http.StatusNotFound && (resp.Request.URL.Path == of || strings.HasPrefix(resp.Request.URL.Path, of+"/")):
		u.absent.Do(func() {
			log.Warn(fmt.Sprintf("the coordinator may have no session %s: use 'envctl runner', or set coordinator.session_id to one that it has", u.session))
		})
	}
}

func redactKey(text, key string) string {
	if len(key) < secret.Shortest {
		return text
	}
	return strings.ReplaceAll(text, key, "[redacted]")
}

// ownSessions leaves only the token's session and its children in a list of sessions.
func (u *runnerGateway) ownSessions(data []byte) ([]byte, error) {
	var list fields
	var all, own []fields
	if err := errors.Join(json.Unmarshal(data, &list), json.Unmarshal(list["sessions"], &all)); err != nil {
		return nil, errListing
	}
	own = []fields{}
	for _, s := range all {
		if u.isOwn(s["session_id"]) || u.isOwn(s["parent_session_id"]) {
			own = append(own, s)
		}
	}
	sessions, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields{"sessions": sessions})
}

// failed answers a request that the coordinator has not answered.
func (u *runnerGateway) failed(w http.ResponseWriter, r *http.Request, err error) {
	switch cause := context.Cause(r.Context()); {
	case errors.Is(cause, errNoAnswer):
		u.gateway.cfg.Logger.Warn("the coordinator does not answer", "timeout", u.timeout)
		detail(w, http.StatusGatewayTimeout, fmt.Sprintf("Agent Coordinator did not answer within %v", u.timeout))
		return
	case cause != nil:
		return // the executor disconnected
	}
	why := redactKey(err.Error(), u.auth.Key)
	u.gateway.cfg.Logger.Warn("the coordinator cannot be reached", "error", why)
	if errors.Is(err, errListing) {
		detail(w, http.StatusBadGateway, "Agent Coordinator sent a list of sessions that the gateway cannot read")
		return
	}
	if _, ok := errors.AsType[*coordinator.TokenError](err); ok {
		why = "the runner gets no token for it; the runner's log says why"
	}
	detail(w, http.StatusBadGateway, "Failed to connect to Agent Coordinator: "+why)
}

// refuseCall answers a request that the gateway does not pass on.
func (u *runnerGateway) refuseCall(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var refused *refusal
	switch {
	case errors.As(err, &tooLarge):
		u.refuse(w, r, http.StatusRequestEntityTooLarge, "size", fmt.Sprintf("Request body has more than %d MiB", maxCall>>20))
	case errors.As(err, &refused):
		u.refuse(w, r, refused.status, refused.detail, refused.detail)
	case errors.Is(err, errBusy):
		u.refuse(w, r, http.StatusServiceUnavailable, "memory", err.Error())
	case r.Context().Err() != nil: // the executor disconnected
	default:
		u.refuse(w, r, http.StatusBadRequest, "body", "Request body cannot be read: "+err.Error())
	}
}

func (u *runnerGateway) refuse(w http.ResponseWriter, r *http.Request, status int, reason, message string) {
	u.gateway.cfg.Logger.Warn("request to the coordinator refused", "status", status, "reason", reason, "method", r.Method)
	detail(w, status, message)
}

// detail answers with an error in the form of the coordinator.
func detail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"detail": message})
}
