// Package tail keeps the end of a program's output, for error messages.
package tail

import (
	"strings"
	"sync"
)

// Buffer keeps the last Max bytes written to it; a Max of zero means 4 KiB. The zero value is
// ready to use. Several goroutines may use it at once.
type Buffer struct {
	Max int

	mu   sync.Mutex
	last []byte
}

const defaultMax = 4 << 10

// Write appends p. It never fails.
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

// String returns the bytes as text, without surrounding white space. Invalid UTF-8 becomes "?".
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(b.last)), "?")
}

// Of returns as much of a text's end as fits in a message, without surrounding white space.
func Of(text string) string {
	const most = 500
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = "..." + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}
