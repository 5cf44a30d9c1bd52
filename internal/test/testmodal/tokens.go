package testmodal

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// tokens are the credentials of clients.
type tokens struct {
	id, secret, auth string
	mu               *sync.Mutex
	life             *time.Duration // of sandbox tokens
}

func newTokens() tokens {
	life := time.Hour
	return tokens{
		id: newID("ak"), secret: newID("as"), auth: newJWT("auth", time.Now().Add(24*time.Hour)),
		mu: &sync.Mutex{}, life: &life,
	}
}

// newJWT returns a new token of three parts. The server compares tokens as secrets and does not
// verify the signature, which is random.
func newJWT(subject string, expires time.Time) string {
	part := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{
		part([]byte(`{"alg":"HS256","typ":"JWT"}`)),
		part(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, subject, expires.Unix())),
		part([]byte(newID("sig"))),
	}, ".")
}

// header returns the first value of a call's header.
func header(ctx context.Context, name string) string {
	if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// check refuses calls of the control plane without the server's token. Calls of the router are
// checked against the tokens of their sandbox.
func (t tokens) check(ctx context.Context, method string) error {
	if !strings.HasPrefix(method, "/modal.client.ModalClient/") {
		return nil
	}
	if header(ctx, "x-modal-token-id") != t.id || header(ctx, "x-modal-token-secret") != t.secret {
		return status.Error(codes.Unauthenticated, "Token missing. Could not authenticate client.")
	}
	return nil
}

// SetTokenLife sets the lifetime of sandbox tokens that are issued from now on. The SDK
// requests a new token only if the last one expires in less than 30 seconds.
func (s *Server) SetTokenLife(life time.Duration) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	*s.tokens.life = life
}

// ExpireTokens revokes all sandbox tokens issued up to now.
func (s *Server) ExpireTokens() {
	for _, sb := range s.list() {
		sb.mu.Lock()
		clear(sb.tokens)
		sb.mu.Unlock()
	}
}

// token issues a token of the sandbox.
func (sb *sandbox) token() string {
	t := sb.server.tokens
	t.mu.Lock()
	expires := time.Now().Add(*t.life)
	t.mu.Unlock()
	jwt := newJWT(sb.task, expires)
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.tokens[jwt] = expires
	return jwt
}

// admits reports whether a call has a valid token of the sandbox.
func (sb *sandbox) admits(ctx context.Context) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	expires, ok := sb.tokens[strings.TrimPrefix(header(ctx, "authorization"), "Bearer ")]
	return ok && time.Now().Before(expires)
}
