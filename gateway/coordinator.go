package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/coordinator"
)

// Coordinator says how executors in a sandbox reach an agent coordinator. They need no key: the
// gateway authorizes their requests, and adds what the runner owns. The zero value is none.
type Coordinator struct {
	// URL is the base address of the coordinator.
	URL string `json:"url,omitempty"`
	// Profile is the executor profile of the sandbox, and Hostname the name of the machine. When
	// an executor binds to its session, the gateway adds both. An empty Hostname means that of
	// this machine.
	Profile  string `json:"profile,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	// SessionID is the session's ID at the coordinator. Empty means the ID of the conversation.
	SessionID string `json:"session_id,omitempty"`
	// Credential is the coordinator's API key. That of a file is read again when the coordinator
	// refuses it. With neither Credential nor OAuth2, requests have no authorization.
	Credential KeySource `json:"credential,omitzero"`
	// OAuth2 gets access tokens in place of a key; nil for none.
	OAuth2 *OAuth2 `json:"oauth2,omitempty"`
	// Allow has requests that executors may send in addition to those of the session client, as
	// in "POST /runs" and "GET /agents/*": a "*" is one element of the path, and "{session}" is
	// SessionID. Requests for another session are refused whatever it has.
	Allow []string `json:"allow,omitempty"`
}

// OAuth2 is a grant of client credentials (RFC 6749, 4.4).
type OAuth2 struct {
	// TokenURL is the address of the token endpoint, such as
	// https://example.eu.auth0.com/oauth/token.
	TokenURL string `json:"token_url,omitempty"`
	ClientID string `json:"client_id,omitempty"`
	// Credential is the client's secret.
	Credential KeySource `json:"credential,omitzero"`
	// Audience names the API that the tokens are for. Auth0 requires it; empty leaves it out.
	Audience string   `json:"audience,omitempty"`
	Scopes   []string `json:"scopes,omitempty"`
}

// IsZero reports whether there is no coordinator.
func (c Coordinator) IsZero() bool {
	return c.URL == "" && c.Profile == "" && c.Hostname == "" && c.SessionID == "" && c.Credential.IsZero() && c.OAuth2 == nil && len(c.Allow) == 0
}

// coordinatorName is the first element of paths below runnerscripts.CoordinatorPath.
const coordinatorName = "coordinator"

var (
	// sessionPattern are the IDs that can stand in a path as they are.
	sessionPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	allowPattern   = regexp.MustCompile(`^(GET|POST|PUT|PATCH|DELETE) (/(\*|\{session\}|[A-Za-z0-9_][A-Za-z0-9_.-]*))+$`)
)

// Check returns the errors of [Coordinator.Open] and [Coordinator.Transport] that do not depend
// on keys. The zero value has none.
func (c Coordinator) Check() error {
	if c.IsZero() {
		return nil
	}
	invalid := func(where string, err error) error {
		return fmt.Errorf("%w: coordinator.%s: %w", ErrConfig, where, err)
	}
	if _, err := coordinator.ParseURL(c.URL); err != nil {
		return invalid("url", err)
	}
	if c.Profile == "" {
		return fmt.Errorf("%w: coordinator.profile: it is empty; name the executor profile, which the gateway adds to what executors send", ErrConfig)
	}
	if c.SessionID != "" && !sessionPattern.MatchString(c.SessionID) {
		return fmt.Errorf("%w: coordinator.session_id: %q has other characters than letters, digits, '_', '.' and '-'", ErrConfig, c.SessionID)
	}
	for i, rule := range c.Allow {
		if !allowPattern.MatchString(rule) {
			return fmt.Errorf("%w: coordinator.allow[%d]: %q is no method and path; give one such as \"GET /agents/*\"", ErrConfig, i, rule)
		}
	}
	if c.OAuth2 == nil {
		if c.Credential.IsZero() {
			return nil
		}
		if err := c.Credential.check("COORDINATOR_API_KEY"); err != nil {
			return invalid("credential", err)
		}
		return nil
	}
	if !c.Credential.IsZero() {
		return fmt.Errorf("%w: coordinator: it has both credential and oauth2; leave one out", ErrConfig)
	}
	return c.OAuth2.check(invalid)
}

func (o OAuth2) check(invalid func(where string, err error) error) error {
	if _, err := coordinator.ParseURL(o.TokenURL); err != nil {
		return invalid("oauth2.token_url", err)
	}
	if o.ClientID == "" {
		return fmt.Errorf("%w: coordinator.oauth2.client_id: it is empty; give the ID of the client whose secret is in credential", ErrConfig)
	}
	if err := o.Credential.check("COORDINATOR_CLIENT_SECRET"); err != nil {
		return invalid("oauth2.credential", err)
	}
	return nil
}

// auth reads the keys. Errors are [ErrConfig]; they name the source and never contain its
// content.
func (c Coordinator) auth(ctx context.Context) (coordinator.Auth, error) {
	if err := c.Check(); err != nil {
		return coordinator.Auth{}, err
	}
	switch {
	case c.OAuth2 != nil:
		secret, err := c.OAuth2.Credential.key(ctx)
		if err != nil {
			return coordinator.Auth{}, fmt.Errorf("%w: coordinator.oauth2.credential: %w", ErrConfig, err)
		}
		o := c.OAuth2
		return coordinator.Auth{OAuth2: &coordinator.OAuth2{TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: secret, Audience: o.Audience, Scopes: o.Scopes}}, nil
	case !c.Credential.IsZero():
		key, err := c.Credential.key(ctx)
		if err != nil {
			return coordinator.Auth{}, fmt.Errorf("%w: coordinator.credential: %w", ErrConfig, err)
		}
		auth := coordinator.Auth{Key: key}
		if c.Credential.File != "" { // which a server writes again with each start
			auth.Renew = c.Credential.key
		}
		return auth, nil
	}
	return coordinator.Auth{}, nil
}

// Transport reads the keys and returns a transport that authorizes requests to URL, which next
// sends. It refuses requests to other addresses. ctx covers the reading of the keys only. Errors
// are [ErrConfig].
func (c Coordinator) Transport(ctx context.Context, next http.RoundTripper) (http.RoundTripper, error) {
	auth, err := c.auth(ctx)
	if err != nil {
		return nil, err
	}
	base, err := coordinator.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	return coordinator.NewTransport(base, auth, next), nil
}

// Coordination is a [Coordinator] whose keys were read.
type Coordination struct {
	base                       *url.URL
	auth                       coordinator.Auth
	session, hostname, profile string
	rules                      []rule
}

// Open reads the keys. session is the ID of the conversation. Errors are [ErrConfig]; they name
// the source of a key and never contain it.
func (c Coordinator) Open(ctx context.Context, session string) (*Coordination, error) {
	c.SessionID = cmp.Or(c.SessionID, session)
	if c.SessionID == "" {
		return nil, fmt.Errorf("%w: coordinator.session_id: the session has no ID; give one", ErrConfig)
	}
	auth, err := c.auth(ctx)
	if err != nil {
		return nil, err
	}
	o := &Coordination{auth: auth, session: c.SessionID, hostname: c.Hostname, profile: c.Profile}
	if o.base, err = coordinator.ParseURL(c.URL); err != nil {
		return nil, err
	}
	if o.hostname == "" {
		if o.hostname, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("%w: coordinator.hostname: this machine has no name: %w; give one", ErrConfig, err)
		}
	}
	for _, text := range append(clientRequests(), c.Allow...) {
		o.rules = append(o.rules, parseRule(text, o.session))
	}
	return o, nil
}

// Keys returns the keys, so that the caller can redact them.
func (o *Coordination) Keys() []string {
	if o.auth.OAuth2 != nil {
		return []string{o.auth.OAuth2.ClientSecret}
	}
	if o.auth.Key != "" {
		return []string{o.auth.Key}
	}
	return nil
}

// clientRequests are the requests of a session client that the gateway passes on as they are.
func clientRequests() []string {
	return []string{
		"GET /sessions", // the answer has no sessions of others
		"GET /sessions/{session}", "GET /sessions/{session}/status", "GET /sessions/{session}/result",
		"GET /sessions/{session}/affinity", "GET /sessions/{session}/events", "DELETE /sessions/{session}",
		"GET /sse/sessions", // with the session in the query
	}
}

// rule is an allowed method and path; an empty element of the path stands for any.
type rule struct {
	method   string
	elements []string
}

func parseRule(text, session string) rule {
	method, path, _ := strings.Cut(text, " /")
	r := rule{method: method, elements: strings.Split(path, "/")}
	for i, e := range r.elements {
		switch e {
		case "*":
			r.elements[i] = ""
		case "{session}":
			r.elements[i] = session
		}
	}
	return r
}

// matches reports whether a request matches the rule.
func (r rule) matches(method string, elements []string) bool {
	if method != r.method || len(elements) != len(r.elements) {
		return false
	}
	for i, e := range r.elements {
		if e != "" && e != elements[i] {
			return false
		}
	}
	return true
}
