package jsonkeys

import (
	"strings"
	"testing"
)

func TestADuplicateKeyIsNamedWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}`: "",
		`7`:                        "",
		`{"a":1,"a":2}`:            "the key a stands twice",
		`{"b":{"a":1,"a":2}}`:      "the key b.a stands twice",
		`{"c":[{},{"a":1,"a":2}]}`: "the key c[1].a stands twice",
		`{"a":1,"A":2}`:            "",
		`{"a":`:                    "EOF",
	} {
		err := Unique([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
