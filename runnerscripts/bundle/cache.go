package bundle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

// keepUnused is how long an unused binary stays in the cache.
const keepUnused = 30 * 24 * time.Hour

// cached returns the binary that the cache holds under key. If the binary is missing, or damaged
// according to check, build writes it to a file. One process builds it, and all others wait.
func (f *finder) cached(ctx context.Context, key string, check func(name string) error, build func(ctx context.Context, to string) error) (string, error) {
	root, err := f.cacheDir()
	if err != nil {
		return "", err
	}
	name := filepath.Join(root, key, f.fileName())
	if hit(name, check) {
		return name, nil
	}
	unlock, err := flock.Lock(ctx, filepath.Join(root, "lock-"+f.fileName()), func() {
		f.cfg.Progress("waiting for another process that builds the runner for " + f.platform())
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if hit(name, check) {
		return name, nil
	}
	if err := install(ctx, name, build); err != nil {
		return "", err
	}
	prune(root, filepath.Dir(name))
	return name, nil
}

// hit reports whether the binary is in the cache, and marks it as used. A binary that a full disk
// or a power failure has damaged counts as missing.
func hit(name string, check func(name string) error) bool {
	if usable(name) != nil || private(name, 0o022) != nil || check(name) != nil {
		return false
	}
	now := time.Now()
	// A cache that is not writable can still be read.
	_ = os.Chtimes(filepath.Dir(name), now, now)
	return true
}

// install builds the binary and renames it when it is complete. The caller holds the lock, so .new
// can only be the orphan of a dead process.
func install(ctx context.Context, name string, build func(ctx context.Context, to string) error) error {
	tmp := filepath.Join(filepath.Dir(name), ".new")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(tmp, "envrunner")
	if err := build(ctx, file); err != nil {
		return err
	}
	// The sandbox may run the file as another user, so it needs mode 0755.
	if err := os.Chmod(file, 0o755); err != nil {
		return err
	}
	return os.Rename(file, name)
}

// other is the advice to use another cache.
const other = "or name another in XDG_CACHE_HOME (or bundle.Config.CacheDir)"

// cacheDir returns the cache's folder after checking that it belongs to the user.
func (f *finder) cacheDir() (string, error) {
	dir := f.cfg.CacheDir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w; set HOME, %s", err, other)
		}
		dir = filepath.Join(base, "agentenv")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the cache folder cannot be written: %w; make it one that can, %s", err, other)
	}
	if err := private(dir, 0o022); err != nil {
		return "", fmt.Errorf("chmod 700 the cache folder if it is yours, %s: %w", other, err)
	}
	return dir, nil
}

// ours matches the folders that this package makes in the cache. The user chooses the cache's
// folder, so it may hold other things.
var ours = regexp.MustCompile(`^(source-|embedded-)[0-9a-f]{32}$|^version-v[0-9]+\.`)

// prune removes binaries that were unused for keepUnused. It ignores errors: the cache works
// without pruning.
func prune(root, keep string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		info, err := e.Info()
		if err != nil || !e.IsDir() || !ours.MatchString(e.Name()) || dir == keep || time.Since(info.ModTime()) < keepUnused {
			continue
		}
		_ = os.RemoveAll(dir)
	}
}
