package modal

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// The tags of every sandbox. They identify the owner, so that GC does not end the sandbox of a
// live program. Modal does not document its rules for tags: these are few, short and plain.
const (
	tagPrefix   = "agentenv"
	tagSandbox  = tagPrefix             // always tagIs
	tagSession  = tagPrefix + "-for"    // Spec.Session, truncated to maxTag
	tagExpires  = tagPrefix + "-until"  // when Modal ends it, in seconds since 1970
	tagKeep     = tagPrefix + "-keep"   // with Spec.Keep: keepSoon, and keepDone once it is complete
	tagGuest    = tagPrefix + "-guest"  // the version of the guest protocol
	tagHost     = tagPrefix + "-host"   // the owner's machine
	tagOwner    = tagPrefix + "-owner"  // the owner's boot, PID namespace, PID and start time
	tagSettings = tagPrefix + "-config" // the digest of the settings: see record
	tagIs       = "1"
)

// The values of tagKeep. A kept sandbox that is not complete has no client, so no grace period
// runs for it.
const (
	keepNot  = "no"
	keepSoon = "soon"
	keepDone = "yes"
)

// ownerTags returns the tags that identify this program as the owner.
func ownerTags() map[string]string {
	self := owner.Self()
	return map[string]string{
		tagHost:  plain(self.Host),
		tagOwner: strings.Join([]string{strings.ReplaceAll(self.Boot, "-", ""), inode(self.PIDs), self.PID, self.Started}, "."),
	}
}

// findOwner reports whether the owner that the tags identify is alive.
func findOwner(tags map[string]string) owner.Liveness {
	parts := strings.Split(tags[tagOwner], ".")
	self := owner.Self()
	if len(parts) != 4 || parts[0] != strings.ReplaceAll(self.Boot, "-", "") || parts[1] != inode(self.PIDs) {
		return owner.Unknown
	}
	return owner.Identity{Boot: self.Boot, PIDs: self.PIDs, PID: parts[2], Started: parts[3]}.Liveness()
}

// describeOwner returns the owner as text for users: the machine and the process ID.
func describeOwner(tags map[string]string) string {
	parts := strings.Split(tags[tagOwner], ".")
	if len(parts) != 4 {
		return tags[tagHost]
	}
	return tags[tagHost] + ":" + parts[2]
}

// sandboxTags returns all tags of a new sandbox.
func sandboxTags(cfg config, settings string) map[string]string {
	tags := ownerTags()
	tags[tagSandbox], tags[tagSettings] = tagIs, settings
	tags[tagGuest] = strconv.Itoa(guest.Version)
	tags[tagKeep] = keepNot
	if cfg.Keep {
		tags[tagKeep] = keepSoon
	}
	tags[tagExpires] = strconv.FormatInt(time.Now().Add(cfg.timeout()).Unix(), 10)
	if session := plain(cfg.Session); session != "" {
		tags[tagSession] = session
	}
	for key, value := range cfg.Labels {
		tags[key] = value
	}
	return tags
}

// expires returns when Modal ends a sandbox. The zero time means unknown.
func expires(tags map[string]string) time.Time {
	seconds, err := strconv.ParseInt(tags[tagExpires], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return plausible(time.Unix(seconds, 0))
}

// plausible returns t if its year is in the range that JSON can encode, else the zero time.
func plausible(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// inode returns the number in the name of a PID namespace.
func inode(namespace string) string {
	return strings.TrimSuffix(strings.TrimPrefix(namespace, "pid:["), "]")
}

// plain returns s, shortened and with "_" for each character that may be invalid in a tag.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_.", r):
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), maxTag)]
}

// digest returns a name for content that fits in a tag.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}
