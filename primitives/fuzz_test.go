package primitives_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// FuzzParseSize: a size is an error or a number that is read again as it is written.
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
