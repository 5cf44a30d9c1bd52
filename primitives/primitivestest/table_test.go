package primitivestest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTableOfWays checks that the tests and the groups in the table of docs/new-backend.md exist.
func TestTableOfWays(t *testing.T) {
	doc, err := os.ReadFile("../../docs/new-backend.md")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"all"}
	for _, g := range groups() {
		known = append(known, g.name)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\S+)` `(\\w+).*?` \\| (.+?) \\|").FindAllStringSubmatch(string(doc), -1)
	if len(rows) < 16 {
		t.Errorf("%d rows, there are 16 or more", len(rows))
	}
	for _, row := range rows {
		files, _ := filepath.Glob(filepath.Join("../..", row[1], "*_test.go")) // the pattern is valid
		if !slices.ContainsFunc(files, func(file string) bool {
			source, _ := os.ReadFile(file) // unreadable is missing
			return strings.Contains(string(source), "\nfunc "+row[2]+"(t *testing.T)")
		}) {
			t.Errorf("%s has no %s", row[1], row[2])
		}
		for group := range strings.SplitSeq(row[3], ", ") {
			if !slices.Contains(known, group) {
				t.Errorf("%s %s: no group %q", row[1], row[2], group)
			}
		}
	}
}
