package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestBatchReportsEachFile(t *testing.T) {
	c := connectCuttable(t)
	files := []primitives.File{{Path: "missing/a", Content: []byte("x")}, {Path: "599", Content: []byte("written again by a later group")}}
	for i := range 600 { // more than two groups
		if i == 300 {
			files = append(files, primitives.File{Path: "missing/b"})
		}
		files = append(files, primitives.File{Path: fmt.Sprint(i), Content: []byte(strings.Repeat("x", i))})
	}
	files = append(files,
		primitives.File{Path: "missing/big", Content: make([]byte, 3<<20)},
		primitives.File{Path: "big", Content: bytes.Repeat([]byte("y"), 3<<20)}, // larger than a group
		primitives.File{Path: "last"})
	errs, err := c.WriteFiles(t.Context(), files)
	if err != nil || len(errs) != len(files) {
		t.Fatalf("%d errors, %v", len(errs), err)
	}
	for i, f := range files {
		if bad := strings.HasPrefix(f.Path, "missing/"); bad != errors.Is(errs[i], os.ErrNotExist) {
			t.Errorf("%s: %v", f.Path, errs[i])
			continue
		} else if bad || i == 1 {
			continue
		}
		got, err := os.ReadFile(filepath.Join(c.fake.Paths().Workspace, f.Path))
		if err != nil || !bytes.Equal(got, f.Content) {
			t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
}
