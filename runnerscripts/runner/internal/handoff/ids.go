package handoff

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"
)

// IDs generates the IDs of a converted transcript. They are deterministic for a session and
// item, so that repeating the setup does not create another conversation.
type IDs string

// NewIDs returns the IDs for converting an agent's conversation into a session.
func NewIDs(session string, c Conversation) IDs { return IDs(session + " " + c.Agent) }

// Hex returns n hexadecimal digits, at most 64, for the i-th ID of a kind.
func (ids IDs) Hex(kind string, i, n int) string {
	sum := sha256.Sum256([]byte(string(ids) + " " + kind + " " + strconv.Itoa(i)))
	return fmt.Sprintf("%x", sum)[:n]
}

// UUID returns a UUID for the i-th ID of a kind.
func (ids IDs) UUID(kind string, i int) string {
	h := ids.Hex(kind, i, 32)
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-8" + h[17:20] + "-" + h[20:]
}

// Stamp returns a time in the format that all agents write.
func Stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }
