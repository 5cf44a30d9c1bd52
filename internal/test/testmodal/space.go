package testmodal

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// parts are the trees of a root file system. Each is an overlay of layers with a writable
// directory on top. Programs are a separate tree, on top of this machine's own programs.
var parts = [...]string{"root", "usr"}

// mount is an additional directory in a sandbox.
type mount struct {
	source   string // a directory of this machine
	target   string // its path in the sandbox
	readOnly bool
}

// spaceOptions configure a space.
type spaceOptions struct {
	dir       string   // for written files, by part
	layers    []string // directories with parts, uppermost first
	base      string   // the lowest layer of the part "root"
	mounts    []mount
	noNetwork bool
}

// upper returns the directory for the written files of a part, in a space's directory or a
// layer.
func upper(dir, part string) string { return filepath.Join(dir, part) }

// baseDirs are the directories of every root, with their modes.
var baseDirs = map[string]os.FileMode{
	"dev": 0o755, "etc": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o555,
	"root": 0o700, "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o777 | os.ModeSticky, "usr": 0o755,
	"var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755, "var/tmp": 0o777 | os.ModeSticky,
}

// baseFiles are the files of this machine in every root file system besides its programs. None
// is a secret.
var baseFiles = []string{
	"bin", "sbin", "lib", "lib32", "lib64", "libx32", // if they are links into usr
	"etc/alternatives", "etc/bash.bashrc", "etc/ca-certificates", "etc/debian_version", "etc/group", "etc/gitconfig",
	"etc/host.conf", "etc/hosts", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/localtime", "etc/login.defs",
	"etc/mime.types", "etc/nsswitch.conf", "etc/os-release", "etc/passwd", "etc/perl", "etc/profile", "etc/profile.d",
	"etc/protocols", "etc/python3", "etc/python3.11", "etc/resolv.conf", "etc/services", "etc/shells", "etc/skel", "etc/ssl/certs",
	"etc/ssl/openssl.cnf", "etc/terminfo", "etc/timezone", "var/lib/dpkg/status",
}

// makeBase assembles the lowest layer of root file systems.
func makeBase(dir string) error {
	for name, mode := range baseDirs {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			return err
		}
	}
	for _, name := range baseFiles {
		info, err := os.Lstat("/" + name)
		if err != nil || filepath.Dir(name) == "." && info.Mode()&os.ModeSymlink == 0 {
			continue // not here, or not a link into usr
		}
		if err := takeOver("/"+name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// takeOver copies files, directories and links of this machine that all users may read.
func takeOver(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case info.Mode()&os.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			return os.Symlink(link, target)
		case info.Mode().IsRegular() && info.Mode()&0o004 != 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			return os.WriteFile(target, data, info.Mode().Perm())
		default:
			return nil
		}
	})
}
