// Package bundle finds the envrunner binary for a platform: the one static
// program that is put into every sandbox.
//
// A program that was released with agentenv carries the binary or has it beside itself. A program
// that merely imports agentenv has neither. For it the package builds the binary once, with the Go
// toolchain and from the very source that the program was built from, and keeps it in a cache.
package bundle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrNotFound means that there is no runner for the platform and none can be built. The message
// lists everything that was tried and how to fix it.
var ErrNotFound = errors.New("no runner binary")

// ExplicitVariable is the environment variable that names the binary if Config.Explicit does not.
const ExplicitVariable = "AGENTENV_RUNNER"

// Config describes the wanted binary. The zero value describes the one for this machine.
type Config struct {
	// Explicit is the path of the binary to use. If it is not usable, nothing
	// else is tried. Empty means the environment variable AGENTENV_RUNNER, and
	// if that is empty too, the search.
	Explicit string
	// OS and Arch are the platform of the sandbox, as in runtime.GOOS and
	// runtime.GOARCH. Empty means those of this machine.
	OS, Arch string
	// CacheDir keeps binaries that were built or unpacked. It is created if missing, must belong to
	// the user, and must not be writable by other users. Empty means "agentenv" in the user's cache
	// directory.
	CacheDir string
	// Progress is called with a sentence about each step that takes longer than a moment. Nil
	// reports nothing.
	Progress func(message string)
}

// Path returns the path of a runner binary for the platform. It looks, in this order, for one that
// is named explicitly, one beside the running executable ("envrunner-linux-amd64", or "envrunner"
// if the platform is this machine's), one that is embedded in the program (build tag embedrunner),
// and one in the cache. If it finds none, it builds one. Concurrent processes build it only once.
//
// The error wraps [ErrNotFound], or the cause of ctx if ctx ends first.
func Path(ctx context.Context, cfg Config) (string, error) {
	return newFinder(cfg).find(ctx)
}

// Find is Path for a platform, as in runtime.GOOS and runtime.GOARCH, with default settings. It can
// be the Runner of a provider, such as docker.Provider.
func Find(ctx context.Context, goos, goarch string) (string, error) {
	return Path(ctx, Config{OS: goos, Arch: goarch})
}

// finder is one search. Its fields hold what the search depends on besides Config.
type finder struct {
	cfg        Config
	executable string // path of this program; empty if unknown
	source     string // folder of this module's source; empty if it is not on this machine
	version    string // of this module in this program; empty if it is no release
	tried      []string
}

func newFinder(cfg Config) *finder {
	if cfg.Explicit == "" {
		cfg.Explicit = os.Getenv(ExplicitVariable)
	}
	if cfg.OS == "" {
		cfg.OS = runtime.GOOS
	}
	if cfg.Arch == "" {
		cfg.Arch = runtime.GOARCH
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	f := &finder{cfg: cfg, source: sourceDir(), version: moduleVersion()}
	if exe, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(exe); err == nil {
			f.executable = resolved
		}
	}
	return f
}

func (f *finder) find(ctx context.Context) (string, error) {
	if f.cfg.Explicit != "" {
		return f.explicit()
	}
	if name, ok := f.beside(); ok {
		return name, nil
	}
	name, err := f.kept(ctx)
	if err == nil {
		return name, nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("finding the runner for %s: %w", f.platform(), context.Cause(ctx))
	}
	f.try("building it: %v", err)
	return "", f.notFound()
}

// explicit returns the binary that the user named.
func (f *finder) explicit() (string, error) {
	name, err := filepath.Abs(f.cfg.Explicit)
	if err == nil {
		err = usable(name)
	}
	if err == nil {
		err = f.matches(name, false)
	}
	if err != nil {
		return "", fmt.Errorf("%w for %s: %w; correct the path in bundle.Config.Explicit or %s",
			ErrNotFound, f.platform(), err, ExplicitVariable)
	}
	return name, nil
}

// beside returns the binary in the folder of this program.
func (f *finder) beside() (string, bool) {
	if f.executable == "" {
		f.try("beside the program: it does not know its own path")
		return "", false
	}
	dir := filepath.Dir(f.executable)
	names := []string{f.fileName()}
	if f.cfg.OS == runtime.GOOS && f.cfg.Arch == runtime.GOARCH {
		names = append(names, "envrunner")
	}
	for _, base := range names {
		name := filepath.Join(dir, base)
		err := usable(name)
		if err == nil {
			err = trusted(name)
		}
		if err == nil {
			err = f.matches(name, true)
		}
		if err == nil {
			return name, true
		}
		f.try("beside the program: %v", err)
	}
	return "", false
}

// kept returns the binary from the cache. It unpacks or builds the binary first if the cache does
// not have it.
func (f *finder) kept(ctx context.Context) (string, error) {
	if content, ok := content(f.fileName()); ok {
		check := func(name string) error { return same(name, content) }
		return f.cached(ctx, "embedded-"+digest(content), check, func(_ context.Context, to string) error {
			if err := os.WriteFile(to, content, 0o700); err != nil {
				return err
			}
			if err := f.isRunner(to); err != nil {
				return fmt.Errorf("the runner that this program carries as %s cannot be used: %w", f.fileName(), err)
			}
			return nil
		})
	}
	f.try("embedded: %s", f.notCarried())
	if f.source == "" && f.version == "" {
		return "", errors.New("this program knows neither where agentenv's source is nor which release it uses; build it without -trimpath, or give it its runner with bundle.Embed")
	}
	key := "version-" + f.version
	if f.source != "" {
		sum, err := sourceDigest(f.source)
		if err != nil {
			return "", err
		}
		key = "source-" + sum
	}
	return f.cached(ctx, key, f.isRunner, f.build)
}

func (f *finder) platform() string { return f.cfg.OS + "/" + f.cfg.Arch }

func (f *finder) fileName() string { return "envrunner-" + f.cfg.OS + "-" + f.cfg.Arch }

func (f *finder) try(format string, args ...any) {
	f.tried = append(f.tried, fmt.Sprintf(format, args...))
}

func (f *finder) notFound() error {
	return fmt.Errorf("%w for %s; tried:\n  - %s\ncarry one with bundle.Embed, put %s beside the program, name one in %s (or bundle.Config.Explicit), or mend what kept it from being built (the last point)",
		ErrNotFound, f.platform(), strings.Join(f.tried, "\n  - "), f.fileName(), ExplicitVariable)
}
