package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// fileWords are about files. They do not use the backend under test.
func fileWords() map[string]step {
	return map[string]step{
		"write":   {2, func(_ *script, a []string) error { return os.WriteFile(a[0], []byte(a[1]), 0o644) }},
		"append":  {2, func(_ *script, a []string) error { return appendFile(a[0], a[1]) }},
		"mkdir":   {1, func(_ *script, a []string) error { return os.MkdirAll(a[0], 0o755) }},
		"rename":  {2, func(_ *script, a []string) error { return os.Rename(a[0], a[1]) }},
		"rm":      {1, func(_ *script, a []string) error { return os.RemoveAll(a[0]) }},
		"symlink": {2, func(_ *script, a []string) error { return os.Symlink(a[0], a[1]) }},
		"link":    {2, func(_ *script, a []string) error { return os.Link(a[0], a[1]) }},
		"fifo":    {1, func(_ *script, a []string) error { return syscall.Mkfifo(a[0], 0o644) }},
		"socket":  {1, func(_ *script, a []string) error { return socket(a[0]) }},
		"chmod":   {2, func(_ *script, a []string) error { return chmod(a[0], a[1]) }},
		"sparse":  {2, func(_ *script, a []string) error { return sparse(a[0], a[1]) }},
		// copyself PATH: copy this program to PATH.
		"copyself": {1, func(_ *script, a []string) error { return copySelf(a[0]) }},
		// many N DIR: create N files in a directory.
		"many": {2, func(_ *script, a []string) error { return many(a[0], a[1]) }},
		// show PATH: print the file's content.
		"show": {1, func(_ *script, a []string) error {
			b, err := os.ReadFile(a[0])
			return errors.Join(err, write(os.Stdout, b))
		}},
		// sum PATH: print the file's length and SHA-256.
		"sum": {1, func(_ *script, a []string) error {
			b, err := os.ReadFile(a[0])
			fmt.Fprintf(os.Stdout, "%d %x", len(b), sha256.Sum256(b))
			return err
		}},
		// stat PATH: describe the file as JSON, without following links.
		"stat": {1, func(_ *script, a []string) error { return stat(a[0]) }},
		// names DIR: print the names of the entries as JSON.
		"names": {1, func(_ *script, a []string) error {
			entries, err := os.ReadDir(a[0])
			names := []string{}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return errors.Join(err, json.NewEncoder(os.Stdout).Encode(names))
		}},
		// may-read, may-write PATH: print whether this user may do that.
		"may-read":  {1, func(_ *script, a []string) error { return may(a[0], os.O_RDONLY) }},
		"may-write": {1, func(_ *script, a []string) error { return may(a[0], os.O_WRONLY) }},
		"may-enter": {1, func(_ *script, a []string) error {
			fmt.Fprint(os.Stdout, os.Chdir(a[0]) == nil)
			return nil
		}},
		// await PATH: wait until the file exists.
		"await": {1, func(_ *script, a []string) error { return await(a[0]) }},
		"chdir": {1, func(_ *script, a []string) error { return os.Chdir(a[0]) }},
	}
}

func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(f, []byte(text)), f.Close())
}

// socket creates a socket file that nothing listens on.
func socket(name string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func chmod(mode, name string) error {
	m, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return err
	}
	return syscall.Chmod(name, uint32(m))
}

func sparse(size, name string) error {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(n), f.Close())
}

func copySelf(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o755)
}

func many(count, dir string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d", i)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func stat(name string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("no system information")
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"mode": sys.Mode & 0o7777, "size": info.Size(), "links": sys.Nlink,
		"uid": sys.Uid, "gid": sys.Gid, "mtime": info.ModTime(),
	})
}

func may(name string, flag int) error {
	f, err := os.OpenFile(name, flag, 0)
	fmt.Fprint(os.Stdout, err == nil)
	if err != nil {
		return nil
	}
	return f.Close()
}

func await(name string) error {
	for {
		if _, err := os.Lstat(name); err == nil {
			return nil
		}
		<-time.After(2 * time.Millisecond)
	}
}
