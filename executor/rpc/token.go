package rpc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// TokenLife is the default lifetime of a token.
const TokenLife = 24 * time.Hour

// ErrToken is the error for every token that is not valid. The texts differ: the token is unknown,
// expired, used up, or of another session.
var ErrToken = errors.New("the session token is not valid")

// Grant is what a token is for.
type Grant struct {
	// Session is the session, and User its user, for audits; User may be empty.
	Session, User string
	// Credentials are the names that get_api_key may deliver. Empty delivers none.
	Credentials []string
	// Life is the lifetime; zero means [TokenLife].
	Life time.Duration
	// Token is a token that a running executor still has, such as that of an earlier program: it gets
	// this grant and a new lifetime. Empty means a new one.
	Token string
	// MaxUses is how many requests may carry the token; zero means no limit.
	MaxUses int
}

// Tokens are the tokens of sessions: 256 random bits each. Only digests are kept. The zero value is
// ready to use, and its methods may be called from several goroutines.
type Tokens struct {
	mu     sync.Mutex
	grants map[[sha256.Size]byte]*grant
	now    func() time.Time // time.Now if it is nil
}

type grant struct {
	Grant
	ctx     context.Context    //nolint:containedctx // it is the lifetime that requests with the token share
	end     context.CancelFunc // when the token is revoked
	expires time.Time
	uses    int
}

func (t *Tokens) time() time.Time {
	if t.now != nil {
		return t.now()
	}
	return time.Now()
}

// Issue returns a token for a grant.
func (t *Tokens) Issue(g Grant) string {
	if g.Life == 0 {
		g.Life = TokenLife
	}
	g.Credentials = slices.Clone(g.Credentials)
	token := g.Token
	g.Token = ""
	if token == "" {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // it never fails
		token = hex.EncodeToString(secret)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.time()
	t.removeExpiredLocked(now)
	if t.grants == nil {
		t.grants = map[[sha256.Size]byte]*grant{}
	}
	digest := sha256.Sum256([]byte(token))
	if old := t.grants[digest]; old != nil && now.Before(old.expires) { // its requests may run
		old.Grant, old.expires = g, now.Add(g.Life)
		return token
	}
	ctx, end := context.WithCancel(context.Background()) //nolint:forbidigo // Revoke or the expiry ends it
	t.grants[digest] = &grant{Grant: g, ctx: ctx, end: end, expires: now.Add(g.Life)}
	return token
}

// expiredFor is how long an expired token is remembered, so that its error can say so.
const expiredFor = time.Hour

func (t *Tokens) removeExpiredLocked(now time.Time) {
	maps.DeleteFunc(t.grants, func(_ [sha256.Size]byte, g *grant) bool {
		if now.Before(g.expires) {
			return false
		}
		g.end()
		return now.After(g.expires.Add(expiredFor))
	})
}

// use counts a use of a token, and returns the grant as it is now: Issue may change it. session, if not
// empty, is the session whose token it must be. The error is [ErrToken].
func (t *Tokens) use(token, session string) (grant, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, err := t.findLocked(token, session)
	if err != nil {
		return grant{}, err
	}
	g.uses++
	return *g, nil
}

// check returns the error of use, which it does not count.
func (t *Tokens) check(token string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.findLocked(token, "")
	return err
}

func (t *Tokens) findLocked(token, session string) (*grant, error) {
	now := t.time()
	t.removeExpiredLocked(now)
	// The digest is the key, so the time of the search says nothing about the token.
	g := t.grants[sha256.Sum256([]byte(token))]
	switch {
	case g == nil:
		return nil, fmt.Errorf("%w: there is none such, or its session has ended", ErrToken)
	case !now.Before(g.expires):
		return nil, fmt.Errorf("%w: it has expired", ErrToken)
	case session != "" && g.Session != session:
		return nil, fmt.Errorf("%w: it is of another session", ErrToken)
	case g.MaxUses > 0 && g.uses >= g.MaxUses:
		return nil, fmt.Errorf("%w: it is used up after %d requests", ErrToken, g.MaxUses)
	}
	return g, nil
}

// Revoke ends all tokens of a session, and the requests that carry one.
func (t *Tokens) Revoke(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.grants, func(_ [sha256.Size]byte, g *grant) bool {
		if g.Session != session {
			return false
		}
		g.end()
		return true
	})
}

// revoke ends one token.
func (t *Tokens) revoke(token string) {
	digest := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.grants[digest]; g != nil {
		g.end()
		delete(t.grants, digest)
	}
}
