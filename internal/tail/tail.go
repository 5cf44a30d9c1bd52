// Package tail keeps the end of what a program writes, for messages.
package tail

import (
	"strings"
	"sync"
)

// Buffer keeps the last bytes that are written to it: Max, or 4 KiB if that is zero. The
// zero value is ready to use, by several goroutines at once.
type Buffer struct {
	Max int

	mu   sync.Mutex
	last []byte
}

const defaultMax = 4 << 10

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.Max
	if limit == 0 {
		limit = defaultMax
	}
	b.last = append(b.last, p[max(0, len(p)-limit):]...)
	if over := len(b.last) - limit; over > 0 {
		b.last = append(b.last[:0], b.last[over:]...)
	}
	return len(p), nil
}

// String returns the end as text without space around it. Bytes that are no UTF-8 are "?".
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(b.last)), "?")
}
