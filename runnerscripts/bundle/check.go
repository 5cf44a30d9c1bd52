package bundle

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	module        = "github.com/agentenv-dev/agentenv"
	runnerPackage = module + "/runnerscripts/runner"
)

// usable returns an error unless the file can be a program.
func usable(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable; chmod +x it: %w", name, fs.ErrPermission)
	}
	return nil
}

// trusted returns an error unless only the user and root could have put the file where it is.
func trusted(name string) error {
	resolved, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	if err := private(resolved, 0o002); err != nil {
		return err
	}
	dir := filepath.Dir(resolved)
	if err := private(dir, 0o002); err != nil {
		return err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("%s is not used: everybody can write to %s: %w", name, dir, fs.ErrPermission)
		}
	}
	return nil
}

// private returns an error unless the file belongs to the user or root and has none of the
// forbidden permission bits.
func private(name string, forbidden fs.FileMode) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&forbidden != 0 {
		return fmt.Errorf("%s is not used: others can write to it (%v): %w", name, info.Mode(), fs.ErrPermission)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not used: it belongs to another user (%d): %w", name, st.Uid, fs.ErrPermission)
	}
	return nil
}

// matches returns an error if the program is for another platform. With mustBeOurs the program must
// also be envrunner of this release. Without it, a program that is not written in Go passes: a user
// may name any program that keeps the protocol.
func (f *finder) matches(name string, mustBeOurs bool) error {
	info, err := buildinfo.ReadFile(name)
	switch {
	case err != nil && mustBeOurs:
		return fmt.Errorf("%s is not envrunner: %w", name, err)
	case err != nil:
		return nil
	}
	if err := f.forPlatform(name, info); err != nil {
		return err
	}
	switch {
	case mustBeOurs && info.Path != runnerPackage:
		return fmt.Errorf("%s is not envrunner but %s", name, info.Path)
	case mustBeOurs && f.version != "" && info.Main.Version != f.version:
		return fmt.Errorf("%s is version %s and this program is %s", name, info.Main.Version, f.version)
	}
	return nil
}

// isRunner returns an error unless the file is a whole runner for the platform.
func (f *finder) isRunner(name string) error {
	info, err := buildinfo.ReadFile(name)
	switch {
	case err != nil:
		return err
	case info.Path != runnerPackage:
		return fmt.Errorf("%s is not envrunner but %s", name, info.Path)
	}
	return f.forPlatform(name, info)
}

func (f *finder) forPlatform(name string, info *buildinfo.BuildInfo) error {
	var goos, goarch string
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			goos = s.Value
		case "GOARCH":
			goarch = s.Value
		}
	}
	if goos != f.cfg.OS || goarch != f.cfg.Arch {
		return fmt.Errorf("%s is for %s/%s", name, goos, goarch)
	}
	return nil
}

// same returns an error unless the file has that content.
func same(name string, content []byte) error {
	got, err := os.ReadFile(name)
	if err == nil && !bytes.Equal(got, content) {
		err = fmt.Errorf("%s is damaged", name)
	}
	return err
}
