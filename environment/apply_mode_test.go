package environment

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// modesOf returns the permissions of the files and folders below dir.
func modesOf(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	modes := make(map[string]fs.FileMode)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		modes[strings.TrimPrefix(name, dir+"/")] = info.Mode().Perm()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return modes
}

func TestApplyMakesNoModeWiderThanInTheSandbox(t *testing.T) {
	type modes = map[string]fs.FileMode
	for name, c := range map[string]struct{ before, after, want modes }{
		"new files": {
			modes{},
			modes{"key": 0o600, "ro": 0o444, "exe": 0o711, "group": 0o640, "wide": 0o666, "x": 0o777},
			modes{"key": 0o600, "ro": 0o444, "exe": 0o711, "group": 0o640, "wide": 0o644, "x": 0o755},
		},
		"new folders": {
			modes{"there/a": 0o644},
			modes{"there/a": 0o644, "there": 0o700, "ssl": 0o700, "ssl/key": 0o600, "ssl/d": 0o750, "ssl/d/key": 0o600, "ro": 0o555, "ro/f": 0o644, "wide": 0o777, "wide/f": 0o644},
			modes{"there/a": 0o644, "there": 0o755, "ssl": 0o700, "ssl/key": 0o600, "ssl/d": 0o750, "ssl/d/key": 0o600, "ro": 0o755, "ro/f": 0o644, "wide": 0o755, "wide/f": 0o644},
		},
		"chmod alone": {
			modes{"key": 0o644, "x": 0o755, "ro": 0o644, "group": 0o640},
			modes{"key": 0o600, "x": 0o700, "ro": 0o444, "group": 0o644},
			modes{"key": 0o600, "x": 0o700, "ro": 0o444, "group": 0o640},
		},
		"executable now, or no more": {
			modes{"on": 0o644, "own": 0o644, "off": 0o755, "shut": 0o755, "private": 0o600},
			modes{"on": 0o755, "own": 0o700, "off": 0o644, "shut": 0o600, "private": 0o755},
			modes{"on": 0o755, "own": 0o700, "off": 0o644, "shut": 0o600, "private": 0o700},
		},
	} {
		for _, content := range []string{"same", "changed"} {
			t.Run(name+", "+content, func(t *testing.T) {
				write := func(dir string, files modes, content string) {
					for name := range files {
						full := filepath.Join(dir, name)
						if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
							t.Fatal(err)
						}
						if isFolder := len(filesBelow(files, name)) > 0; !isFolder {
							if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
								t.Fatal(err)
							}
						}
					}
					for name, mode := range files {
						if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
							t.Fatal(err)
						}
					}
				}
				from := Folder{Path: t.TempDir()}
				write(from.Path, c.before, "same")
				cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Folder: &from}}}
				cfg.Sandbox.Workspace = t.TempDir()
				env := create(t, cfg)
				write(cfg.Sandbox.Workspace, c.after, content)
				made, err := env.Apply(t.Context(), from)
				if err != nil || len(made) == 0 {
					t.Fatalf("made %v, %v", made, err)
				}
				for name, mode := range modesOf(t, from.Path) {
					if mode != c.want[name] {
						t.Errorf("%s has mode %o, want %o", name, mode, c.want[name])
					}
				}
				if again, err := env.Apply(t.Context(), from); err != nil || len(again) > 0 {
					t.Errorf("applied again: %v, %v", again, err)
				}
			})
		}
	}
}

// filesBelow returns the names of the files in a folder.
func filesBelow(files map[string]fs.FileMode, dir string) (names []string) {
	for name := range files {
		if strings.HasPrefix(name, dir+"/") {
			names = append(names, name)
		}
	}
	return names
}

// A widened mode is a change of the workspace that Apply does not make.
func TestApplyWidensNoMode(t *testing.T) {
	from := Folder{Path: t.TempDir()}
	name := filepath.Join(from.Path, "f")
	if err := os.WriteFile(name, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Folder: &from}}}
	cfg.Sandbox.Workspace = t.TempDir()
	env := create(t, cfg)
	if err := os.Chmod(filepath.Join(cfg.Sandbox.Workspace, "f"), 0o666); err != nil {
		t.Fatal(err)
	}
	if made, err := env.Apply(t.Context(), from); err != nil || len(made) > 0 || modesOf(t, from.Path)["f"] != 0o640 {
		t.Errorf("made %v, mode %o, %v", made, modesOf(t, from.Path)["f"], err)
	}
}
