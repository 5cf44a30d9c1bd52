package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// hostile returns a workspace with every kind of link that leads out, beside a secret.
func hostile(t testing.TB) (f *FS, ws, outside string) {
	t.Helper()
	paths := primitives.PathsIn(filepath.Join(t.TempDir(), "s"))
	must(t, os.MkdirAll(paths.Workspace, 0o755))
	outside = paths.Session + "/workspace-evil"
	must(t, os.MkdirAll(outside, 0o755))
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o644))
	ws = paths.Workspace
	must(t, os.MkdirAll(ws+"/d/e", 0o755))
	must(t, os.WriteFile(ws+"/d/e/f", []byte("fine"), 0o644))
	for link, target := range map[string]string{
		"abs": outside, "rel": "../workspace-evil", "d/up": "../..", "d/e/in": "..", "self": ws, "root": "/",
		"loop": "loop", "prefix": ws + "-evil", "abs-dots": ws + "/../workspace-evil", "proc": "/proc/self/cwd",
	} {
		must(t, os.Symlink(target, ws+"/"+link))
	}
	f, err := New(Config{Backend: "local", Paths: paths, UID: -1, GID: -1})
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f, ws, outside
}

func TestEveryWayOutIsRefused(t *testing.T) {
	f, _, outside := hostile(t)
	ctx := t.Context()
	for _, dir := range []string{"abs", "rel", "d/up/workspace-evil", "prefix", "abs-dots", "..", "d/../..", "self/..", "root", "proc", "d/e/in/up"} {
		_, openErr := f.Open(ctx, dir+"/secret")
		_, statErr := f.Stat(ctx, dir+"/secret")
		_, listErr := f.List(ctx, dir, primitives.ListOptions{})
		_, resolveErr := f.Resolve(dir)
		_, packErr := f.Pack(ctx, dir, primitives.PackOptions{})
		for op, err := range map[string]error{
			"open": openErr, "stat": statErr, "list": listErr, "resolve": resolveErr, "pack": packErr,
			"write":      write(ctx, f, dir+"/secret", "x", primitives.WriteOptions{}),
			"write new":  write(ctx, f, dir+"/no/such/leaf", "x", primitives.WriteOptions{}),
			"append":     write(ctx, f, dir+"/secret", "x", primitives.WriteOptions{Append: true}),
			"mkdir":      f.Mkdir(ctx, dir+"/x", 0),
			"remove":     f.Remove(ctx, dir+"/secret", false),
			"removetree": f.Remove(ctx, dir+"/secret", true),
			"move out":   f.Move(ctx, "d/e/f", dir+"/f"),
			"move in":    f.Move(ctx, dir+"/secret", "stolen"),
			"unpack":     f.Unpack(ctx, dir+"/x", strings.NewReader("")),
		} {
			if !errors.Is(err, primitives.ErrPathEscape) {
				t.Errorf("%s %s: %v", op, dir, err)
			}
		}
	}
	wantFile(t, outside+"/secret", "secret")
	if got := entries(t, outside); len(got) != 1 {
		t.Errorf("outside: %q", got)
	}
	for _, name := range []string{"d/e/in/e/f", "self/d/e/f", "d/e/../e/f", "./d//e/./f", "self/self/d/e/in/e/f"} {
		if got, err := read(ctx, f, name); err != nil || got != "fine" {
			t.Errorf("%s stays inside: %q %v", name, got, err)
		}
	}
}

func FuzzPathsStayInside(f *testing.F) {
	for _, s := range []string{
		"d/e/f", "../x", "d/../../workspace-evil/secret", "self/../x", "abs/secret", "rel/./secret", "d/up/x", "loop/x",
		"d/e/in/up/workspace-evil/secret", "//", "d//e", "self/self/self/abs-dots/secret", "prefix/secret", "root/etc/passwd",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.HasPrefix(name, "/") {
			return
		}
		fsys, ws, outside := hostile(t)
		if got, err := read(t.Context(), fsys, name); err == nil && got == "secret" {
			t.Errorf("%q reads the secret", name)
		}
		if dir, err := fsys.Resolve(name); err == nil && dir != ws && !strings.HasPrefix(dir, ws+"/") {
			t.Errorf("%q resolves to %s", name, dir)
		}
		_ = write(t.Context(), fsys, name, "x", primitives.WriteOptions{})
		_ = fsys.Move(t.Context(), "d/e/f", name)
		_ = fsys.Mkdir(t.Context(), name+"/dir", 0)
		_ = fsys.Remove(t.Context(), name, true)
		wantFile(t, outside+"/secret", "secret")
		if got := entries(t, outside); len(got) != 1 {
			t.Errorf("%q: outside %q", name, got)
		}
		if got := entries(t, filepath.Dir(ws)); len(got) != 2 {
			t.Errorf("%q: beside %q", name, got)
		}
	})
}
