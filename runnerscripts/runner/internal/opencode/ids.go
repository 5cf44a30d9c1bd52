package opencode

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// idPattern matches the program's ids of sessions. Such an id is safe as a part of a path.
var idPattern = agent.Pattern{Expr: `^ses_[0-9A-Za-z]{1,64}$`}

// newID returns an ID like the program's: later IDs are greater, because the program sorts by
// them.
func newID(prefix string, now time.Time) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	random := make([]byte, 14)
	_, _ = rand.Read(random) // never fails
	for i, b := range random {
		random[i] = digits[int(b)%len(digits)]
	}
	stamp := uint64(now.UnixMilli()) << 12 & (1<<48 - 1)
	return fmt.Sprintf("%s_%012x%s", prefix, stamp, random)
}
