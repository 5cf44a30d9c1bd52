// Package coordinator authorizes requests to an agent coordinator: with a key, or with access tokens of OAuth2 client
// credentials.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/agentenv-dev/agentenv/internal/secret"
)

const (
	// refreshEarly is how long before its end a token is replaced, or half its life if that is shorter.
	refreshEarly = time.Minute
	// refreshTimeout is how long a request waits for a new token while the old one is still valid.
	refreshTimeout = 2 * time.Second
	// tokenTimeout is how long a request waits for a token without which it cannot be sent.
	tokenTimeout = 30 * time.Second
)

// Auth says how to authorize requests. The zero value does not.
type Auth struct {
	// Key is sent as "Authorization: Bearer". It is never part of an error.
	Key string
	// Renew reads Key again when the coordinator refuses it; nil for a key that stays. It may be called from several goroutines.
	Renew func(context.Context) (string, error)
	// OAuth2 gets tokens that are sent in place of Key; nil for none.
	OAuth2 *OAuth2
}

// OAuth2 is a grant of client credentials (RFC 6749, 4.4).
type OAuth2 struct {
	TokenURL, ClientID string
	ClientSecret       string // never part of an error
	// Audience names the API that the tokens are for. Auth0 requires it; empty leaves it out.
	Audience string
	Scopes   []string // may be empty
}

// ParseURL parses the address of a coordinator or of a token endpoint.
func ParseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("it is no plain http or https address; set one such as https://coordinator.example.com")
	}
	return u, nil
}

// TokenError says that the token endpoint has issued no token.
type TokenError struct {
	Endpoint string // without secrets
	Err      error  // without secrets
}

func (e *TokenError) Error() string {
	return fmt.Sprintf("no token for the coordinator from %s: %v", e.Endpoint, e.Err)
}

// Unwrap returns the cause.
func (e *TokenError) Unwrap() error { return e.Err }

// Transport authorizes requests to one coordinator. Its methods may be called from several goroutines at once.
type Transport struct {
	base  *url.URL
	renew func(context.Context) (string, error) // nil for none
	token *source                               // nil for none
	next  http.RoundTripper

	mu  sync.Mutex
	key string
}

// NewTransport returns a transport for requests to the coordinator at base, which next sends. It fetches a token with the
// first request and keeps it until a minute before its end.
func NewTransport(base *url.URL, auth Auth, next http.RoundTripper) *Transport {
	t := &Transport{base: base, key: auth.Key, renew: auth.Renew, next: next}
	if auth.OAuth2 != nil {
		t.token = newSource(*auth.OAuth2, next)
	}
	return t
}

// RoundTrip sends a request with the authorization, which replaces that of the request. It refuses a request to another
// address, such as one that a client makes after a redirect: the key is for the coordinator alone. If no token can be
// fetched, the error is a [*TokenError]. A request whose key or token the coordinator refuses is sent again if there is another
// one, from Auth.Renew or for a token of a minute or older, and the request has no body, or GetBody.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != t.base.Scheme || r.URL.Host != t.base.Host {
		return nil, refused(r, fmt.Errorf("%s://%s is not the coordinator %s://%s, and its key is for no other", r.URL.Scheme, r.URL.Host, t.base.Scheme, t.base.Host))
	}
	key, err := t.current(r.Context())
	if err != nil {
		return nil, refused(r, err)
	}
	resp, err := t.next.RoundTrip(withKey(r, key))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	renewed, err := t.replace(r.Context(), key)
	if err != nil || renewed == key {
		return resp, nil //nolint:nilerr // the coordinator's answer says that the key is refused
	}
	again := withKey(r, renewed)
	if r.Body != nil && r.Body != http.NoBody {
		if r.GetBody == nil {
			return resp, nil
		}
		if again.Body, err = r.GetBody(); err != nil {
			return resp, nil //nolint:nilerr // as above
		}
	}
	_ = resp.Body.Close()
	return t.next.RoundTrip(again)
}

// current returns the key or the token of a request.
func (t *Transport) current(ctx context.Context) (string, error) {
	if t.token != nil {
		return t.token.get(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.key, nil
}

// replace returns another key or token for one that the coordinator refuses; the same one if there is no other.
func (t *Transport) replace(ctx context.Context, key string) (string, error) {
	switch {
	case t.token != nil:
		t.token.drop(key)
		return t.token.get(ctx)
	case t.renew == nil:
		return key, nil
	}
	renewed, err := t.renew(ctx)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.key = renewed
	return renewed, nil
}

// withKey returns a copy of a request with a key.
func withKey(r *http.Request, key string) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}

// refused closes the body of a request that is not sent, as a RoundTripper must.
func refused(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
}

// source fetches tokens, one at a time, and keeps the last one.
type source struct {
	grant    clientcredentials.Config
	client   *http.Client
	endpoint string
	turn     chan struct{} // holds a token while one is fetched

	mu      sync.Mutex
	token   string
	fetched time.Time
	refresh time.Time // the token should be replaced from here on; zero means never
	expires time.Time // zero means never
}

func newSource(o OAuth2, next http.RoundTripper) *source {
	s := &source{
		grant:    clientcredentials.Config{ClientID: o.ClientID, ClientSecret: o.ClientSecret, TokenURL: o.TokenURL, Scopes: o.Scopes},
		endpoint: o.TokenURL,
		turn:     make(chan struct{}, 1),
		// A redirect could lead the secret elsewhere.
		client: &http.Client{Transport: next, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	if o.Audience != "" {
		s.grant.EndpointParams = url.Values{"audience": {o.Audience}}
	}
	return s
}

// current returns the token, whether it is valid, and whether it needs no replacement yet.
func (s *source) current() (token string, valid, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	valid = s.token != "" && (s.expires.IsZero() || now.Before(s.expires))
	return s.token, valid, valid && (s.refresh.IsZero() || now.Before(s.refresh))
}

// drop forgets a token that the coordinator refuses, unless it is so new that the next one would be refused, too.
func (s *source) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token && time.Since(s.fetched) >= refreshEarly {
		s.token = ""
	}
}

// get returns a valid token. While one caller replaces a token that ends soon, the others use it.
func (s *source) get(ctx context.Context) (string, error) {
	token, valid, fresh := s.current()
	if fresh {
		return token, nil
	}
	if valid {
		select {
		case s.turn <- struct{}{}:
		default:
			return token, nil
		}
	} else {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	defer func() { <-s.turn }()
	if token, valid, fresh = s.current(); fresh {
		return token, nil
	}
	limit := tokenTimeout
	if valid {
		limit = refreshTimeout
	}
	err := s.fetch(ctx, limit)
	if err != nil && valid {
		return token, nil //nolint:nilerr // the next request tries again
	}
	if err != nil {
		return "", err
	}
	token, _, _ = s.current()
	return token, nil
}

// fetch replaces the token.
func (s *source) fetch(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	began := time.Now()
	token, err := s.grant.Token(context.WithValue(ctx, oauth2.HTTPClient, s.client))
	switch {
	case err != nil && ctx.Err() != nil:
		return &TokenError{s.endpoint, context.Cause(ctx)}
	case err != nil:
		return &TokenError{s.endpoint, s.explain(err)}
	case strings.ContainsFunc(token.AccessToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return &TokenError{s.endpoint, errors.New("its token has characters that no token has")}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.fetched, s.expires, s.refresh = token.AccessToken, began, token.Expiry, time.Time{}
	if !token.Expiry.IsZero() {
		s.refresh = token.Expiry.Add(-min(refreshEarly, token.Expiry.Sub(began)/2))
	}
	return nil
}

// explain returns an error of the token endpoint without its body, which may repeat the secret.
func (s *source) explain(err error) error {
	said, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return errors.New(s.redact(err.Error()))
	}
	text := "it answered"
	if said.Response != nil {
		text += " " + said.Response.Status
	}
	if said.ErrorCode != "" {
		text += fmt.Sprintf(": %.100s", said.ErrorCode)
	}
	if said.ErrorDescription != "" {
		text += fmt.Sprintf(": %.300s", said.ErrorDescription)
	}
	return errors.New(s.redact(text))
}

// redact replaces the secret in a text, unless it is too short for that.
func (s *source) redact(text string) string {
	if len(s.grant.ClientSecret) < secret.Shortest {
		return text
	}
	return strings.ReplaceAll(text, s.grant.ClientSecret, "[redacted]")
}
