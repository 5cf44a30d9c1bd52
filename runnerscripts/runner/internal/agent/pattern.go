package agent

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression that is compiled on first use. Package-level patterns use it:
// the guest of every sandbox contains this code, and compiling all patterns would take a
// quarter of its memory.
type Pattern struct {
	// Expr is the expression. An invalid one panics on first use.
	Expr string

	once     sync.Once
	compiled *regexp.Regexp
}

// Get returns the compiled expression. It may be called by several goroutines at once.
func (p *Pattern) Get() *regexp.Regexp {
	p.once.Do(func() { p.compiled = regexp.MustCompile(p.Expr) })
	return p.compiled
}
