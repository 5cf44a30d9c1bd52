package primitives_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// FuzzParseSize checks that ParseSize returns an error, a size of at least zero, or NoSize.
func FuzzParseSize(f *testing.F) {
	f.Add("1.5g")
	f.Add("none")
	f.Fuzz(func(t *testing.T, text string) {
		size, err := primitives.ParseSize(text)
		if err != nil {
			return
		}
		if size < 0 && size != primitives.NoSize {
			t.Errorf("%q is %d", text, size)
		}
	})
}
