package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// sourceDir returns the folder of this module's source, from which this program was built: a
// working copy or the module cache. It returns "" if the source is not there or the program was
// built with -trimpath.
func sourceDir() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return ""
	}
	dir := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.HasPrefix(string(mod), "module "+module+"\n") {
		return ""
	}
	return dir
}

// moduleVersion returns the version of this module in the running program, or "" if that version
// cannot be downloaded.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	mod := &info.Main
	for _, dep := range info.Deps {
		if dep.Path == module {
			mod = dep
		}
	}
	if mod.Path != module || mod.Replace != nil || mod.Version == "(devel)" || strings.Contains(mod.Version, "+dirty") {
		return ""
	}
	return mod.Version
}

// hashed are the parts of the module that the runner is built from.
var hashed = []string{"go.mod", "go.sum", "executor", "internal/ended", "internal/owner", "internal/patience", "internal/relink", "internal/sparse", "internal/tail", "primitives", "runnerscripts"}

// sourceDigest returns a digest of everything that the runner is built from: equal digests mean
// equal binaries.
func sourceDigest(dir string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), buildFlags)
	for _, part := range hashed {
		err := filepath.WalkDir(filepath.Join(dir, part), func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && (e.Name() == "testdata" || e.Name() == "dist"):
				return fs.SkipDir
			case !e.Type().IsRegular() || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			return hashFile(h, dir, name)
		})
		if err != nil {
			return "", fmt.Errorf("reading the source of agentenv: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32], nil
}

func hashFile(h io.Writer, dir, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintln(h, strings.TrimPrefix(name, dir), info.Size())
	_, err = io.Copy(h, f)
	return err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])[:32]
}
