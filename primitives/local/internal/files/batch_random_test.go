package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// A batch has the same result as writing its files one after the other, whatever their paths are.
func TestABatchIsLikeSingleWrites(t *testing.T) {
	const rounds, seed = 400, 7
	random := rand.New(rand.NewPCG(seed, seed)) // the same sequence in each run
	base := t.TempDir()
	for round := range rounds {
		name := func(kind string) string { return fmt.Sprintf("%s/%d-%s", base, round, kind) }
		batch := randomBatch(random)
		together, single := prepared(t, name("together")), prepared(t, name("single"))
		errs, err := together.WriteFiles(t.Context(), placed(batch, together))
		must(t, err)
		for i, file := range placed(batch, single) {
			want := single.WriteFile(t.Context(), file.Path, bytes.NewReader(file.Content), primitives.WriteOptions{Mode: file.Mode})
			if kind := kindOf(want); !errors.Is(errs[i], kind) {
				t.Errorf("round %d, %q: %v, alone %v", round, batch[i].Path, errs[i], want)
			}
		}
		if got, want := treeText(t, name("together")), treeText(t, name("single")); got != want {
			t.Errorf("round %d: files are\n%s\nand would be\n%s", round, got, want)
		}
		must(t, errors.Join(together.Close(), single.Close()))
		if t.Failed() {
			for _, file := range batch {
				t.Logf("%v %q", file.Mode, file.Path)
			}
			return
		}
	}
}

// root stands for the workspace in paths that are absolute.
const root = "<workspace>"

func randomBatch(random *rand.Rand) []primitives.File {
	pick := func(s ...string) string { return s[random.IntN(len(s))] }
	batch := make([]primitives.File, 1+random.IntN(8))
	first := pick("", "", "", root+"/") // the prefix of most paths
	for i := range batch {
		var path strings.Builder
		path.WriteString(pick(first, first, first, first, "./", root+"/"))
		path.WriteString(pick("n", "n", "n", "n", "m", "have", "link", "dangling", "file"))
		for range random.IntN(4) {
			path.WriteString(pick("/", "/", "/", "/", "//", "/./"))
			path.WriteString(pick("a", "a", "b", "sub", "sub", "..", "n", "tofile"))
		}
		path.WriteString(pick("", "", "", "", "", "", "/", "/.", "/.."))
		batch[i] = primitives.File{Path: path.String(), Content: fmt.Append(nil, i)}
		if random.IntN(4) == 0 {
			batch[i].Mode = 0o751
		}
	}
	return batch
}

// prepared returns a sandbox that already has some files.
func prepared(t *testing.T, dir string) *FS {
	t.Helper()
	paths := primitives.PathsIn(dir)
	for _, dir := range paths.All() {
		must(t, os.MkdirAll(dir, 0o755))
	}
	ws := paths.Workspace
	put(t, ws+"/have/sub/a", "old")
	put(t, ws+"/file", "old")
	for link, target := range map[string]string{"link": "n", "dangling": "m/sub", "have/tofile": "../n/a", "have/n": "../n"} {
		must(t, os.Symlink(target, ws+"/"+link))
	}
	f, err := New(Config{Backend: "local", Paths: paths, UID: -1, GID: -1})
	must(t, err)
	return f
}

func placed(batch []primitives.File, f *FS) []primitives.File {
	there := make([]primitives.File, len(batch))
	for i, file := range batch {
		there[i] = file
		there[i].Path = strings.Replace(file.Path, root, f.cfg.Paths.Workspace, 1)
	}
	return there
}

// kindOf returns the sentinel of the contract that err wraps.
func kindOf(err error) error {
	if err == nil {
		return nil
	}
	for _, kind := range []error{
		fs.ErrNotExist, fs.ErrExist, fs.ErrInvalid, fs.ErrPermission, primitives.ErrIsDirectory, primitives.ErrNotDirectory,
		primitives.ErrPathEscape, primitives.ErrNotRegular,
	} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return err
}

// treeText describes everything below a directory.
func treeText(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := []byte(nil)
		switch {
		case d.Type().IsRegular():
			content, err = os.ReadFile(name)
		case d.Type() == fs.ModeSymlink:
			var target string
			target, err = os.Readlink(name)
			content = []byte(target)
		}
		fmt.Fprintf(&text, "%v %s %q\n", info.Mode(), strings.TrimPrefix(name, dir), content)
		return err
	}))
	return text.String()
}
