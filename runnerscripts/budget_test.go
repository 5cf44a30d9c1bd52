package runnerscripts

import "testing"

func TestCommasInTextAreNoValues(t *testing.T) {
	for in, want := range map[string]int{
		`{"a":1,"b":",,,"}`: 1, `["\",",","\\",","]`: 2, `",`: 0, `"\`: 0, `[,"` + "\x01" + `,",`: 2, ``: 0,
	} {
		if got := countValues([]byte(in)); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}
