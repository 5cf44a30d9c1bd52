package glob

import (
	"errors"
	"io/fs"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"*.go", "a.go", true},
		{"*.go", "x/y/a.go", true},
		{"node_modules", "x/node_modules", true},
		{"node_modules/", "x/node_modules", true},
		{"node_modules", "x/node_modules/y", false},
		{"/build", "build", true},
		{"/build", "x/build", false},
		{"./a/b", "a/b", true},
		{"src/*.go", "src/a.go", true},
		{"src/*.go", "src/x/a.go", false},
		{"src/**/*.go", "src/a.go", true},
		{"**", "x/y", true},
		{"*.{md,txt}", "x/a.txt", true},
		{"\xfe*", "\xfe\xff", true},
	} {
		s, err := Compile("Include", []string{"never", c.pattern})
		if err != nil || s.Match(c.path) != c.want || s.Empty() {
			t.Errorf("%q on %q: %v, want %v", c.pattern, c.path, !c.want, c.want)
		}
	}
	for _, bad := range []string{"", "/", "[", "{a", "a\\"} {
		if _, err := Compile("Include", []string{bad}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if (Set{}).Match("x") || !(Set{}).Empty() {
		t.Error("the zero value matches")
	}
}
