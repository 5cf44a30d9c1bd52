package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Role says what a caller may do. Each role may do what those before it may.
type Role string

// The roles.
const (
	// RoleUser: sessions of its own, in sandboxes that the server's configuration describes and that isolate them. The caller
	// chooses the agent, and workspaces of inline files and git repositories over https.
	RoleUser Role = "user"
	// RoleRunner: also any configuration, and sandboxes of its own. Such a caller can do on the server's machine what the
	// server can: only its mistakes are kept from the sessions of others.
	RoleRunner Role = "runner"
	// RoleAdmin: everything of every caller.
	RoleAdmin Role = "admin"
)

// roles are in order.
var roles = []Role{RoleUser, RoleRunner, RoleAdmin}

// may reports whether the role is, or includes, another one.
func (r Role) may(need Role) bool {
	return slices.Index(roles, r) >= slices.Index(roles, need) && need != ""
}

// Caller is the program or person behind a token.
type Caller struct {
	// Name owns sessions: they have it as the metadata "owner". It must not be empty, but for an admin.
	Name string
	Role Role
}

// String returns the name, or the role of a caller without one.
func (c Caller) String() string { return cmp.Or(c.Name, string(c.Role)) }

// ownerKey is the key of a session's metadata with the name of its owner.
const ownerKey = "owner"

// access has the least role of each operation. An operation that is not here makes New fail.
var access = map[string]Role{
	"GET /openapi.json": RoleUser,
	"GET /acp":          RoleUser,
	"POST /acp":         RoleUser,
	"DELETE /acp":       RoleUser,

	"POST /team/load":      RoleUser,
	"POST /session/create": RoleUser,
	"POST /session/run":    RoleUser,

	"GET /sessions":                                 RoleUser,
	"POST /sessions":                                RoleUser,
	"GET /sessions/{id}":                            RoleUser,
	"DELETE /sessions/{id}":                         RoleUser,
	"POST /sessions/{id}/open":                      RoleUser,
	"POST /sessions/{id}/unload":                    RoleUser,
	"POST /sessions/{id}/prompts":                   RoleUser,
	"POST /sessions/{id}/prompts/{query}/interrupt": RoleUser,
	"POST /sessions/{id}/interrupt":                 RoleUser,
	"POST /sessions/{id}/permissions/{request}":     RoleUser,
	"PATCH /sessions/{id}/options":                  RoleUser,
	"GET /sessions/{id}/tools":                      RoleUser,
	"GET /sessions/{id}/models":                     RoleUser,
	"GET /sessions/{id}/transcript":                 RoleUser,
	"DELETE /sessions/{id}/environment":             RoleUser,
	"GET /sessions/{id}/files":                      RoleUser,
	"POST /sessions/{id}/checkpoints":               RoleUser,
	"GET /sessions/{id}/changes":                    RoleUser,
	"POST /sessions/{id}/rewind":                    RoleUser,
	"POST /sessions/{id}/fork":                      RoleUser,
	"GET /sessions/{id}/events":                     RoleUser,
	"GET /sessions/{id}/file":                       RoleUser,
	"PUT /sessions/{id}/file":                       RoleUser,
	"GET /sessions/{id}/patch":                      RoleUser,
	"GET /sessions/{id}/workspace":                  RoleUser,
	"PUT /sessions/{id}/workspace":                  RoleUser,
	"GET /permissions":                              RoleUser,
	"DELETE /permissions/{id}":                      RoleUser,
	"GET /sandboxes":                                RoleRunner,
	"POST /sandboxes":                               RoleRunner,
	"POST /sandboxes/collect":                       RoleAdmin,
	"GET /sandboxes/{id}":                           RoleRunner,
	"DELETE /sandboxes/{id}":                        RoleRunner,
	"GET /sandboxes/{id}/usage":                     RoleRunner,
	"GET /sandboxes/{id}/history":                   RoleRunner,
	"POST /sandboxes/{id}/pause":                    RoleRunner,
	"POST /sandboxes/{id}/resume":                   RoleRunner,
	"GET /sandboxes/{id}/connect":                   RoleRunner,

	"POST /coordinator/runs":                        RoleUser,
	"GET /coordinator/runs":                         RoleUser,
	"GET /coordinator/runs/{id}":                    RoleUser,
	"POST /coordinator/runs/{id}/stop":              RoleUser,
	"GET /coordinator/agents":                       RoleUser,
	"GET /coordinator/sessions":                     RoleUser,
	"GET /coordinator/sessions/{id}":                RoleUser,
	"DELETE /coordinator/sessions/{id}":             RoleUser,
	"GET /coordinator/sessions/{id}/status":         RoleUser,
	"GET /coordinator/sessions/{id}/result":         RoleUser,
	"GET /coordinator/sessions/{id}/affinity":       RoleUser,
	"GET /coordinator/sessions/{id}/events":         RoleUser,
	"POST /coordinator/sessions/{id}/events":        RoleRunner,
	"POST /coordinator/sessions/{id}/bind":          RoleRunner,
	"PATCH /coordinator/sessions/{id}/metadata":     RoleRunner,
	"POST /coordinator/sessions/{id}/stop":          RoleUser,
	"GET /coordinator/sse/sessions":                 RoleUser,
	"POST /coordinator/runner/register":             RoleRunner,
	"POST /coordinator/runner/heartbeat":            RoleRunner,
	"GET /coordinator/runner/runs":                  RoleRunner,
	"POST /coordinator/runner/runs/{id}/started":    RoleRunner,
	"POST /coordinator/runner/runs/{id}/completed":  RoleRunner,
	"POST /coordinator/runner/runs/{id}/failed":     RoleRunner,
	"POST /coordinator/runner/runs/{id}/stopped":    RoleRunner,
	"POST /coordinator/runner/sessions/{id}/status": RoleRunner,
	"GET /coordinator/runners":                      RoleRunner,
	"DELETE /coordinator/runners/{id}":              RoleRunner,
}

// ownedBy returns metadata with the caller as the owner.
func ownedBy(caller Caller, metadata map[string]string) map[string]string {
	owned := map[string]string{}
	maps.Copy(owned, metadata)
	owned[ownerKey] = caller.Name
	return owned
}

// guard returns the handler of a route for those callers that may use it. A session of another caller does not exist for them.
func (s *Server) guard(r route) (http.Handler, error) {
	need, ok := access[r.method+" "+strings.TrimPrefix(r.path, sessionapi.Prefix)]
	if !ok {
		return nil, fmt.Errorf("%s %s: no role may use it", r.method, r.path)
	}
	const one = sessionapi.Prefix + "/sessions/{id}"
	ofSession := strings.HasPrefix(r.path, one)
	stored := r.method == http.MethodGet && r.path == one // the state is that of the store, whatever server has the session
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		caller := callerOf(req.Context())
		err := s.limit(caller)
		switch {
		case err != nil:
		case !caller.Role.may(need):
			err = fmt.Errorf("%w: %s %s needs the role %s, and this token has %s", fs.ErrPermission, req.Method, req.URL.Path, need, caller.Role)
		case ofSession:
			err = s.owns(req.Context(), caller, req.PathValue("id"))
		}
		forwarded := false
		if err == nil && ofSession && !stored {
			forwarded, err = s.elsewhere(w, req, req.PathValue("id"))
		}
		switch {
		case err != nil:
			s.fail(w, req, err)
		case !forwarded:
			r.handler(w, req)
		}
	}), nil
}

// owns returns the error for an unknown session if it is not the caller's. All are an admin's.
func (s *Server) owns(ctx context.Context, caller Caller, id string) error {
	if caller.Role == RoleAdmin {
		return nil
	}
	record, err := s.cfg.Host.Store().Load(ctx, id)
	if err == nil && record.Metadata[ownerKey] != caller.Name {
		err = &store.Error{Op: "load", ID: id, Err: store.ErrNotFound}
	}
	return err
}

// The limits of callers that are no admins.
const (
	maxRate, maxBurst  = 50, 200 // requests, a second and at once
	defaultMaxSessions = 100
)

// rates are the limits of callers, by name.
type rates struct {
	most  rate.Limit // a second
	burst int
	mu    sync.Mutex
	all   map[string]*rate.Limiter
}

func (s *Server) limit(caller Caller) error {
	if caller.Role == RoleAdmin {
		return nil
	}
	s.rates.mu.Lock()
	defer s.rates.mu.Unlock()
	l := s.rates.all[caller.Name]
	if l == nil {
		if s.rates.all == nil {
			s.rates.all = make(map[string]*rate.Limiter)
		}
		l = rate.NewLimiter(s.rates.most, s.rates.burst)
		s.rates.all[caller.Name] = l
	}
	if !l.Allow() {
		return fmt.Errorf("%w: at most %v requests a second", apierror.ErrTooMany, s.rates.most)
	}
	return nil
}

// admitSession checks the configuration of a new session of a caller, and makes the caller its owner. in is what the client has
// sent, and cfg what comes of it and the defaults.
func (s *Server) admitSession(ctx context.Context, caller Caller, in sessionapi.NewSession, cfg *session.Config) error {
	if caller.Role == RoleAdmin {
		return nil
	}
	if _, ok := in.Metadata[session.DelegatedBy]; ok { // that agent could then remove the session, and would pay for it
		return fmt.Errorf("%w: metadata: %q says which session has started this one, and is set by that alone; leave it out", fs.ErrInvalid, session.DelegatedBy)
	}
	cfg.Metadata = ownedBy(caller, cfg.Metadata)
	if caller.Role == RoleUser {
		keys, err := keysOf(in.Config)
		if err != nil {
			return err
		}
		if err := admitConfig(slices.Contains(keys, "workspace"), cfg.Environment); err != nil {
			return err
		}
	}
	return s.room(ctx, caller, 1)
}

// room returns an error if a caller may not have so many sessions more.
func (s *Server) room(ctx context.Context, caller Caller, more int) error {
	if caller.Role == RoleAdmin {
		return nil
	}
	n := 0
	for _, err := range s.cfg.Host.List(ctx, store.Filter{Metadata: ownedBy(caller, nil)}) {
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return err
		}
		n++
	}
	if n+more > s.cfg.MaxSessions {
		return fmt.Errorf("%w: %s has %d sessions, and may have %d; remove some", apierror.ErrTooMany, caller.Name, n, s.cfg.MaxSessions)
	}
	return nil
}

// userKeys are the keys that the configuration of a user's session may have. The others are of the server's machine, its keys or
// what it pays for.
var userKeys = []string{"agent", "workspace", "ignore_changes", "checkpoints", "raw"}

// notForUsers is the error for what a user may not choose.
func notForUsers(what, instead string) error {
	return fmt.Errorf("%w: a token of the role %s may not choose %s; %s", fs.ErrPermission, RoleUser, what, instead)
}

// admitRequest refuses what a caller may not choose, before anything of it is read: a profile may be a file of this machine.
func admitRequest(caller Caller, in sessionapi.NewSession) error {
	if caller.Role != RoleUser {
		return nil
	}
	keys, err := keysOf(in.Config)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !slices.Contains(userKeys, key) {
			return notForUsers(key, "it is that of the server's configuration")
		}
	}
	if in.MaxQuerySize != 0 || in.MaxSessionSize != 0 {
		return notForUsers("max_query_size and max_session_size", "they are those of the server")
	}
	return nil
}

// admitServers refuses n MCP servers of a caller that may not choose the profile.
func admitServers(caller Caller, n int) error {
	if caller.Role == RoleUser && n > 0 {
		return notForUsers("mcpServers", "they are those of the server's profile")
	}
	return nil
}

// keysOf returns the keys of a configuration.
func keysOf(config json.RawMessage) ([]string, error) {
	var keys map[string]json.RawMessage
	if len(config) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, fmt.Errorf("%w: config: %w", fs.ErrInvalid, err)
	}
	return slices.Sorted(maps.Keys(keys)), nil
}

// admitConfig refuses what a user may not choose in a configuration. own says that the workspace is the user's choice.
func admitConfig(own bool, cfg environment.Config) error {
	for i, src := range cfg.Workspace {
		if own && (src.Folder != nil || src.Tar != nil || src.Git != nil && !strings.HasPrefix(src.Git.URL, "https://")) {
			return notForUsers(fmt.Sprintf("workspace[%d]", i), "give files, or a git repository over https")
		}
	}
	if !cfg.Sandbox.HasImage() {
		return notForUsers(fmt.Sprintf("a sandbox of the type %q, which the server has", cfg.Sandbox.Type), "it does not isolate callers: serve with --sandbox docker")
	}
	return nil
}

// callerKey is the key of the caller in the context of a request.
type callerKey struct{}

// callerOf returns the caller of a request.
func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// authenticate returns the caller of a request by its token.
func (s *Server) authenticate(r *http.Request) (Caller, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, fmt.Errorf("%w: send it in the header Authorization: Bearer", apierror.ErrUnauthorized)
	}
	sum := sha256.Sum256([]byte(token))
	if s.cfg.Token != "" && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1 {
		return Caller{Role: RoleAdmin}, nil
	}
	if s.cfg.Authenticate == nil {
		return Caller{}, fmt.Errorf("%w: send it in the header Authorization: Bearer", apierror.ErrUnauthorized)
	}
	caller, err := s.cfg.Authenticate(r.Context(), token)
	switch {
	case err != nil:
		return Caller{}, fmt.Errorf("%w: %w", apierror.ErrUnauthorized, err)
	case !slices.Contains(roles, caller.Role) || caller.Name == "" && caller.Role != RoleAdmin:
		return Caller{}, fmt.Errorf("%w: Authenticate returned %+v", apierror.ErrInternal, caller)
	}
	return caller, nil
}
