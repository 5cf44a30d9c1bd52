package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// A file that a program writes meanwhile is packed as it was at some moment, or said to have changed.
func TestAFileThatChangesMeanwhileIsPackedWholeOrNamed(t *testing.T) {
	for what, size := range map[string]int{"small": 100_000, "large": 3_000_000} {
		t.Run(what, func(t *testing.T) {
			f, paths := open(t)
			file, err := os.Create(paths.Workspace + "/f")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			fill := func(c string) {
				for at := int64(0); at < int64(size); at += 10_000 {
					if _, err := file.WriteAt([]byte(strings.Repeat(c, 10_000)), at); err != nil {
						t.Error(err)
					}
				}
			}
			fill("a")
			var writing sync.WaitGroup
			stop := make(chan struct{})
			writing.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						fill(string(rune('a' + i%26)))
					}
				}
			})
			named, whole := 0, 0
			for range 50 {
				content, changed := packOne(t, f, "f")
				switch torn := !isMoment(content); {
				case changed:
					named++
				case torn:
					t.Error("a mix of contents that it never had is not named")
				default:
					whole++
				}
			}
			close(stop)
			writing.Wait()
			if content, changed := packOne(t, f, "f"); changed || len(content) != size {
				t.Errorf("at rest: %d bytes, named %t", len(content), changed)
			}
			if named == 0 && what == "large" {
				t.Errorf("%d of 50 were whole: nothing was tried", whole)
			}
		})
	}
}

// isMoment reports whether the file had this content at some moment: one letter, or the next one at its beginning.
func isMoment(content string) bool {
	rest := strings.TrimLeft(content, content[:1])
	return rest == "" || strings.Trim(rest, rest[:1]) == "" && (rest[0]-'a'+1)%26 == content[0]-'a'
}

// packOne packs one file and reports whether the archive says that it changed.
func packOne(t *testing.T, f *FS, name string) (content string, changed bool) {
	t.Helper()
	r, err := f.Pack(t.Context(), ".", primitives.PackOptions{Only: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b bytes.Buffer
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return b.String(), changed
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			changed = h.PAXRecords[primitives.PackChanged] == name
			continue
		}
		if _, err := io.Copy(&b, in); err != nil {
			t.Fatal(err)
		}
	}
}
