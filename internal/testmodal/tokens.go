package testmodal

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// tokens are what clients prove themselves with.
type tokens struct{ id, secret, auth string }

func newTokens() tokens {
	return tokens{id: newID("ak"), secret: newID("as"), auth: newJWT("auth", time.Now().Add(time.Hour))}
}

// newJWT mints a token of three parts. Nobody verifies its signature, which is
// random and so makes the token the secret that it is compared as.
func newJWT(subject string, expires time.Time) string {
	part := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{
		part([]byte(`{"alg":"HS256","typ":"JWT"}`)),
		part(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, subject, expires.Unix())),
		part([]byte(newID("sig"))),
	}, ".")
}

// header is the first value of a call's header.
func header(ctx context.Context, name string) string {
	if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// check refuses calls of the control plane without the server's token. The router's
// calls are checked against their sandbox.
func (t tokens) check(ctx context.Context, method string) error {
	if !strings.HasPrefix(method, "/modal.client.ModalClient/") {
		return nil
	}
	if header(ctx, "x-modal-token-id") != t.id || header(ctx, "x-modal-token-secret") != t.secret {
		return status.Error(codes.Unauthenticated, "Token missing or not valid")
	}
	return nil
}
