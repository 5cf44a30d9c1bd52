package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// The errors of a server, besides those of package session.
var (
	// ErrUnauthorized: the token is missing, wrong or expired.
	ErrUnauthorized = apierror.ErrUnauthorized
	// ErrTooMany: the token has made too many requests, or has too many sessions.
	ErrTooMany = apierror.ErrTooMany
	// ErrInternal: the server failed. Its log has the number that the message names.
	ErrInternal = apierror.ErrInternal
	// ErrUnreachable: there was no connection to the server for Config.Patience.
	ErrUnreachable = errors.New("the server cannot be reached")
)

// DefaultPatience is the default of Config.Patience.
const DefaultPatience = time.Minute

// Config says which server to use. Only URL is required.
type Config struct {
	// URL is the address of the server, such as "http://127.0.0.1:8377".
	URL string
	// Token is what the server knows this client by; empty for a server that asks for none.
	Token string
	// HTTP makes the requests. Nil means a client with the defaults of net/http.
	HTTP *http.Client
	// Patience is how long a call tries again while there is no connection to a server that has answered before, and how
	// long events may have a gap while there is none. Zero means DefaultPatience, a negative value not at all.
	Patience time.Duration
	// Logger receives a warning when a connection breaks; nil discards it.
	Logger hclog.Logger
}

// Client opens sessions of a server, as session.Host does those of a program. Its methods may be called from several
// goroutines at once.
type Client struct {
	base     string
	token    string
	http     http.Client
	patience time.Duration
	log      hclog.Logger
	reached  atomic.Bool // the server has answered, and was not given up since
}

// New returns a client. It does not connect. An address that is none is fs.ErrInvalid.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("server %q: %w: give an address such as http://127.0.0.1:8377", cfg.URL, fs.ErrInvalid)
	}
	c := &Client{base: strings.TrimSuffix(u.String(), "/"), token: strings.TrimSpace(cfg.Token), patience: cfg.Patience}
	if c.log = cfg.Logger; c.log == nil {
		c.log = hclog.NewNullLogger()
	}
	if cfg.HTTP != nil {
		c.http = *cfg.HTTP
	}
	// A server does not redirect. To follow would turn a change into a GET, and send the token elsewhere.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if c.patience == 0 {
		c.patience = DefaultPatience
	}
	return c, nil
}

// Create starts a new session. Paths in cfg are of the server's machine, and keys of model APIs are the server's. A Store, an
// ID, Trust, readers and functions are fs.ErrInvalid. Permission requests wait for [Session.Respond]. The server does not store
// the values of Agent.Env: they are lost when the session is closed.
func (c *Client) Create(ctx context.Context, cfg session.Config) (*Session, error) {
	body, err := newSession(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a session on the server: %w", err)
	}
	var created sessionapi.Created
	if err := c.change(ctx, http.MethodPost, sessionapi.Prefix+"/sessions", body, &created); err != nil {
		return nil, err
	}
	if created.ID == "" {
		return nil, fmt.Errorf("create a session on the server: the answer of the server has no id")
	}
	return c.Session(created.ID), nil
}

// Check returns the errors that Create would return, and creates nothing: the server resolves the configuration, with its own settings
// where cfg has none, and checks it. It returns the environment that the session would have, as environment.FormatSafely does.
func (c *Client) Check(ctx context.Context, cfg session.Config) (json.RawMessage, error) {
	body, err := newSession(cfg)
	if err != nil {
		return nil, fmt.Errorf("check a session on the server: %w", err)
	}
	var team sessionapi.Team
	err = c.change(ctx, http.MethodPost, sessionapi.Prefix+"/team/load", body, &team)
	return team.Config, err
}

// newSession returns a configuration as the server gets it.
func newSession(cfg session.Config) (sessionapi.NewSession, error) {
	env := cfg.Environment
	switch {
	case cfg.Store != nil, cfg.ID != "", cfg.Create != nil:
		return sessionapi.NewSession{}, fmt.Errorf("%w: Store, ID and Create are the server's; leave them out", fs.ErrInvalid)
	case env.OnPermission != nil:
		return sessionapi.NewSession{}, fmt.Errorf("%w: Environment.OnPermission is a function of this program; answer with Respond", fs.ErrInvalid)
	case env.Trust:
		return sessionapi.NewSession{}, fmt.Errorf("%w: Environment.Trust is the server's to give", fs.ErrInvalid)
	case env.Sandbox.Provider != nil && primitives.NewProvider(env.Sandbox.Type) == nil:
		return sessionapi.NewSession{}, fmt.Errorf("%w: Environment.Sandbox.Provider is of no registered type; import its package here, and on the server", fs.ErrInvalid)
	case env.Logger != nil, env.Progress != nil:
		return sessionapi.NewSession{}, fmt.Errorf("%w: Environment.Logger and Progress are of this program; read the session's events", fs.ErrInvalid)
	}
	for i, src := range env.Workspace {
		if src.Tar != nil && src.Tar.Reader != nil {
			return sessionapi.NewSession{}, fmt.Errorf("%w: Environment.Workspace[%d]: a reader cannot be sent; write the files with WriteFile", fs.ErrInvalid, i)
		}
	}
	config, err := environment.FormatConfig(env)
	if err != nil {
		return sessionapi.NewSession{}, err
	}
	return sessionapi.NewSession{
		Config: config, PermissionTimeout: sessionapi.Duration(env.PermissionTimeout), Metadata: cfg.Metadata,
		RejectBusy: cfg.RejectBusy, MaxQueue: cfg.MaxQueue,
		HealthInterval: sessionapi.Duration(cfg.HealthInterval), IdleTimeout: sessionapi.Duration(cfg.IdleTimeout),
		NoFiles: cfg.NoFiles, MaxQuerySize: cfg.MaxQuerySize, MaxSessionSize: cfg.MaxSessionSize,
		CheckpointInterval: sessionapi.Duration(cfg.CheckpointInterval), KeepPeriodic: cfg.KeepPeriodic,
		WatchWorkspace: (*sessionapi.FilesOptions)(cfg.WatchWorkspace),
	}, nil
}

// Open opens the session with this ID on the server, and returns it. An unknown ID is store.ErrNotFound. The other errors are
// those of session.Open.
func (c *Client) Open(ctx context.Context, id string) (*Session, error) {
	s := c.Session(id)
	if err := c.change(ctx, http.MethodPost, s.path("open"), nil, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// Session returns the session with this ID without a call. Its methods that only read do not open it: [Session.Events] then
// ends after the stored events, unless a query goes on.
func (c *Client) Session(id string) *Session { return &Session{c, id} }

// Unload closes the session with this ID if the server has it open; see session.AgentSession.Close. It stays stored.
func (c *Client) Unload(ctx context.Context, id string) error {
	return c.change(ctx, http.MethodPost, sessionapi.SessionPath(id, "unload"), nil, nil)
}

// List returns the matching records, latest first, as store.Store.List does.
func (c *Client) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		var list sessionapi.Sessions
		if err := c.get(ctx, sessionapi.Prefix+"/sessions", sessionapi.FilterQuery(f), &list); err != nil {
			yield(store.Record{}, err)
			return
		}
		for _, s := range list.Sessions {
			var err error
			if s.Error != nil {
				err = sessionapi.Codes().Err(*s.Error)
			}
			if !yield(s.Record, err) {
				return
			}
		}
	}
}

// StoredAnswer is a stored answer to a permission request, which holds always. It has no Key here.
type StoredAnswer = answers.Answer

// Permissions returns the caller's stored answers to permission requests, oldest first; those of all callers for an admin.
func (c *Client) Permissions(ctx context.Context) ([]StoredAnswer, error) {
	var list sessionapi.Permissions
	err := c.get(ctx, sessionapi.PermissionPath(""), nil, &list)
	return list.Permissions, err
}

// RemovePermission removes a stored answer, so that agents ask again, in running sessions too. One that the caller does not
// have is fs.ErrNotExist.
func (c *Client) RemovePermission(ctx context.Context, id string) error {
	return c.change(ctx, http.MethodDelete, sessionapi.PermissionPath(id), nil, nil)
}

// filesQuery returns options as the query of an address. Without a key "ignore" the server ignores its defaults.
func filesQuery(o environment.FilesOptions) url.Values {
	q := url.Values{}
	if o.MaxContent != 0 {
		q.Set("max_content", fmt.Sprint(o.MaxContent))
	}
	for _, pattern := range o.Ignore {
		q.Add("ignore", pattern)
	}
	if o.Ignore != nil && len(o.Ignore) == 0 {
		q.Set("ignore", "")
	}
	return q
}
