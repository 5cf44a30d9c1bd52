package tail

import (
	"strings"
	"testing"
)

func TestTheEndIsKept(t *testing.T) {
	b := Buffer{Max: 5}
	for _, c := range []struct{ write, want string }{
		{"ab\n", "ab"}, {"cdef", "cdef"}, {strings.Repeat("x", 100) + "12345", "12345"}, {"\xff", "2345?"}, {"", "2345?"},
	} {
		if n, err := b.Write([]byte(c.write)); n != len(c.write) || err != nil {
			t.Errorf("Write(%q) = %d, %v", c.write, n, err)
		}
		if got := b.String(); got != c.want {
			t.Errorf("after %q: %q, want %q", c.write, got, c.want)
		}
		if len(b.last) > b.Max {
			t.Errorf("it keeps %d bytes", len(b.last))
		}
	}
}

func TestTheZeroValueKeepsSome(t *testing.T) {
	var b Buffer
	for range 100 {
		_, _ = b.Write([]byte(strings.Repeat("y", 1000)))
	}
	if got := len(b.String()); got != defaultMax {
		t.Errorf("%d bytes", got)
	}
}
