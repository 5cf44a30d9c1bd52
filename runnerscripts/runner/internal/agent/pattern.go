package agent

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression that is compiled when it is first needed. Package
// level variables are Patterns: the same program is the guest of every sandbox, which
// needs none of them, and compiling them all takes it a quarter of its memory.
type Pattern struct {
	// Expr is the expression; one that is none panics when it is needed.
	Expr string

	once     sync.Once
	compiled *regexp.Regexp
}

// Get returns the compiled expression. It may be called by several goroutines at once.
func (p *Pattern) Get() *regexp.Regexp {
	p.once.Do(func() { p.compiled = regexp.MustCompile(p.Expr) })
	return p.compiled
}
