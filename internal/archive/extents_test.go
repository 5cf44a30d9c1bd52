package archive

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestExtentsOfAFileThatGrowsEndAtTheSizeOfItsHeader(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const mib = 1 << 20
	if _, err := f.WriteAt(make([]byte, mib), 4*mib); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64][]extent{
		2 * mib:   {{0, 2 * mib}}, // the data begins behind it
		4*mib + 5: {{4 * mib, 5}},
		5 * mib:   {{4 * mib, mib}},
		6 * mib:   {{4 * mib, mib}, {6*mib - 1, 1}}, // it has become shorter
	} {
		if got := extents(f, size); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %v, want %v", size, got, want)
		}
	}
}
