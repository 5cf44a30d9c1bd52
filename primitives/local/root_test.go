package local_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// Only root may use the folder for sandboxes of other users.
func TestOnlyRootLooksForSandboxesOfOtherUsers(t *testing.T) {
	const shared = "/var/lib/agentenv"
	if got := local.RootFolders("", 0); len(got) != 2 || got[1] != shared {
		t.Errorf("root looks in %q", got)
	}
	if got := local.RootFolders("", 1000); len(got) != 1 || slices.Contains(got, shared) {
		t.Errorf("another user looks in %q", got)
	}
	if got := local.RootFolders("here", 1000); !slices.Equal(got, []string{"here"}) {
		t.Errorf("with a root of its own it looks in %q", got)
	}
}

// asNobody runs a script as another user, which needs root.
func asNobody(t *testing.T, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-euc", script, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as another user: %v\n%s", err, out)
	}
}

const anID = "abcdefghijklmnop"

// nobodysCache returns a cache directory in which another user has made the folder of this user's
// sandboxes, or its parent.
func nobodysCache(t *testing.T, script string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentenv-root-") //nolint:usetesting // t.TempDir lets no other user in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", dir)
	asNobody(t, `cd "$1"; `+script, dir)
}

// A blocking open would hang the test until it is killed.
func TestNothingIsReadBelowARootOfAnotherUser(t *testing.T) {
	for name, script := range map[string]string{
		"the root":          "mkdir agentenv; mkdir agentenv/local",
		"writable":          "mkdir -p agentenv/local; chmod 777 agentenv agentenv/local",
		"a link":            "mkdir agentenv target; ln -s ../target agentenv/local",
		"not a folder":      "mkdir agentenv; mkfifo agentenv/local",
		"around it":         "mkdir agentenv",
		"around, no folder": "mkfifo agentenv",
	} {
		t.Run(name, func(t *testing.T) {
			nobodysCache(t, script+`; for root in target agentenv/local; do if [ -d $root ] && [ ! -L $root ]; then
				mkdir -p $root/`+anID+`/app; mkfifo $root/`+anID+`/app/sandbox.json; fi; done`)
			ctx := t.Context()
			checks := map[string]func() error{
				"GC": func() error {
					_, err := local.Provider{}.GC(ctx, primitives.GCOptions{})
					return err
				},
				"New": func() error { s, err := local.New(ctx, local.Config{}); return errors.Join(err, ended(s)) },
			}
			if name != "around it" { // there is no root yet
				checks["List"] = func() error { _, err := local.Provider{}.List(ctx); return err }
				checks["Attach"] = func() error { _, err := local.Attach(ctx, local.Config{}, anID); return err }
			}
			for op, check := range checks {
				err := check()
				if name == "around, no folder" && op == "New" {
					if err == nil {
						t.Error("New: no error")
					}
					continue // the system's error names the obstacle
				}
				if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "set root to another folder") {
					t.Errorf("%s: %v", op, err)
				}
			}
		})
	}
}

func ended(s *local.Sandbox) error {
	if s == nil {
		return nil
	}
	_, err := s.Terminate(context.Background())
	return errors.Join(err, s.Close())
}

// Commands of a local sandbox can replace its state files.
func TestWhatASandboxPutsInTheWayStopsNobody(t *testing.T) {
	for name, script := range map[string]string{
		"a pipe":                  "rm sandbox.json; mkfifo sandbox.json",
		"a link":                  "mv sandbox.json other; ln -s other sandbox.json",
		"a folder":                "rm sandbox.json; mkdir sandbox.json",
		"no end":                  "rm sandbox.json; truncate -s 1T sandbox.json",
		"the ID of another":       `sed -i 's/"id":"[^"]*"/"id":"\\u001b[2J"/' sandbox.json`,
		"a pipe for a life":       "rm life; mkfifo life",
		"a life that is a folder": "rm life; mkdir life",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := local.Config{Root: t.TempDir()}
			s, other := newSandbox(t, cfg), newSandbox(t, cfg)
			if res := run(t, s, shell("cd ../app; "+script)); !res.Status.Success() {
				t.Fatalf("%s", res.Stderr)
			}
			list, err := local.Provider{Root: cfg.Root}.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range list {
				if i.ID != s.ID() && i.ID != other.ID() {
					t.Errorf("List returns %q", i.ID)
				}
			}
			if !slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == other.ID() }) {
				t.Errorf("the other sandbox is missing: %+v", list)
			}
			if _, err := (local.Provider{Root: cfg.Root}).GC(t.Context(), primitives.GCOptions{}); err != nil {
				t.Error(err)
			}
			again, err := local.Attach(t.Context(), cfg, s.ID())
			if err == nil {
				err = again.Close()
			}
			if named := name == "the ID of another"; (err == nil) != named {
				t.Errorf("Attach: %v", err)
			}
		})
	}
}

func TestAttachWaitsForALockOnlyUntilItIsCancelled(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	s := newSandbox(t, cfg)
	id := s.ID()
	life, err := os.Open(filepath.Join(s.Paths().App, "life"))
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	if err := s.Close(); err != nil { // releases its lock, too
		t.Fatal(err)
	}
	if err := unix.Flock(int(life.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := local.Attach(ctx, cfg, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is locked: %v", err)
	}
	if err := unix.Flock(int(life.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	again, err := local.Attach(t.Context(), cfg, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := ended(again); err != nil {
		t.Error(err)
	}
}

func TestAnIDThatNewNeverReturnsIsOfNoSandbox(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	for _, id := range []string{"", ".", "..", "short", "ABCDEFGHIJKLMNOP", "../aaaaaaaaaaaaa", "abcdefghijklmno\x1b"} {
		if _, err := local.Attach(t.Context(), cfg, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Attach(%q) = %v", id, err)
		}
		if _, err := local.Adopt(t.Context(), cfg, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Adopt(%q) = %v", id, err)
		}
	}
}

// A sandbox for another user is made in a folder that this user can enter and that only
// root could have made.
func TestASandboxOfAnotherUserIsInAFolderOfRoot(t *testing.T) {
	t.Cleanup(func() { os.Remove("/var/lib/agentenv") }) // fails if a sandbox uses it
	s, err := local.New(t.Context(), local.Config{User: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, s)
	if res := run(t, s, primitives.Command{Args: []string{"/bin/sh", "-c", "id -u && echo written > file && cat file"}}); string(res.Stdout) != "65534\nwritten\n" {
		t.Errorf("%q, %s", res.Stdout, res.Stderr)
	}
	info, err := os.Stat("/var/lib/agentenv")
	if err != nil || info.Mode().Perm() != 0o711 || info.Sys().(*syscall.Stat_t).Uid != 0 || !strings.HasPrefix(s.Paths().Session, "/var/lib/agentenv/") {
		t.Errorf("%+v, %v: %s", info, err, s.Paths().Session)
	}
	list, err := local.Provider{}.List(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == s.ID() }) {
		t.Errorf("List = %+v, %v", list, err)
	}
}
