package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// fewDescriptors limits this program to 300 open files.
func fewDescriptors(t *testing.T) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = 300
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
}

// nest runs a command that nests folders deeper than this program may open descriptors, and deeper
// than a path can name. The last folder is not writable.
func nest(t *testing.T, s *local.Sandbox) {
	t.Helper()
	res := run(t, s, shell(`deep=$(printf 'd/%.0s' $(seq 1000)); for i in 1 2 3; do mkdir -p $deep && cd -P $deep; done
		mkdir -p last/one && touch last/file && chmod 0 last`))
	if !res.Status.Success() {
		t.Fatalf("%+v: %s", res.Status, res.Stderr)
	}
}

func TestASandboxWithFoldersOfAnyDepthIsRemoved(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, cfg local.Config, s *local.Sandbox) error{
		"Terminate": func(t *testing.T, _ local.Config, s *local.Sandbox) error {
			_, err := s.Terminate(t.Context())
			return err
		},
		"GC": func(t *testing.T, cfg local.Config, s *local.Sandbox) error {
			orphan(t, s.Paths().Session)
			if err := s.Close(); err != nil {
				return err
			}
			_, err := local.Provider{Root: cfg.Root}.GC(t.Context(), primitives.GCOptions{NoGrace: true})
			return err
		},
		"GC of a removal that was not finished": func(t *testing.T, cfg local.Config, s *local.Sandbox) error {
			session := s.Paths().Session
			err := errors.Join(s.Close(), os.Rename(session, filepath.Join(cfg.Root, ".removed-"+filepath.Base(session))))
			if err != nil {
				return err
			}
			_, err = local.Provider{Root: cfg.Root}.GC(t.Context(), primitives.GCOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := local.Config{Root: t.TempDir()}
			s, err := local.New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			nest(t, s)
			fewDescriptors(t)
			if err := errors.Join(end(t, cfg, s), s.Close()); err != nil {
				t.Errorf("%.300v", err)
			}
			left, err := os.ReadDir(cfg.Root)
			if err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
