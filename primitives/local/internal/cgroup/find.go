package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Parent returns the control group of this process if groups can be made below it. Otherwise the
// error says why not and is errors.ErrUnsupported.
func Parent() (string, error) {
	dir, ok, err := find("")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if !ok {
		return "", fmt.Errorf("%w: no version 2 control groups are mounted", errors.ErrUnsupported)
	}
	for _, path := range []string{dir, filepath.Join(dir, "cgroup.procs")} {
		if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
			return "", fmt.Errorf("%w: control group %s is not writable: %w", errors.ErrUnsupported, dir, err)
		}
	}
	return dir, nil
}

// find returns the directory of this process's group: of version 2 or, for a controller, of version
// 1.
func find(controller string) (dir string, ok bool, err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	// Some machines have thousands of mounts, and guests little memory.
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	defer func() { _ = mounts.Close() }() // nothing was written
	dir, ok = locate(mounts, string(own), controller)
	return dir, ok, nil
}

// locate is find for the contents of /proc/self/mountinfo and /proc/self/cgroup.
func locate(mounts io.Reader, own, controller string) (string, bool) {
	path, ok := "", false
	for line := range strings.Lines(own) {
		// A line has the number of the hierarchy, its controllers and the path.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (controller == "" && f[0] == "0" || controller != "" && listed(f[1], controller)) {
			path, ok = f[2], true
		}
	}
	if !ok {
		return "", false
	}
	lines := bufio.NewScanner(mounts)
	lines.Buffer(nil, 1<<20) // overlays of many layers have long lines
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), []byte(" - cgroup")) {
			continue
		}
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, fstype := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(fstype) < 3 {
			continue
		}
		if controller == "" && fstype[0] != "cgroup2" || controller != "" && (fstype[0] != "cgroup" || !listed(fstype[2], controller)) {
			continue
		}
		rel, err := filepath.Rel(fields[3], path)
		if err == nil && !strings.HasPrefix(rel, "..") {
			return filepath.Join(fields[4], rel), true
		}
	}
	return "", false
}

// listed reports whether a comma-separated list contains a word.
func listed(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// OOMKills returns how many processes the OOM killer has killed in the nearest group that counts
// them: this process's own or one above it.
func OOMKills() (int, error) {
	for _, version := range []struct{ controller, file string }{{"", "memory.events"}, {"memory", "memory.oom_control"}} {
		dir, ok, err := find(version.controller)
		if err != nil {
			return 0, err
		}
		for ; ok && len(dir) > 1; dir = filepath.Dir(dir) {
			if b, err := os.ReadFile(filepath.Join(dir, version.file)); err == nil {
				return oomCount(string(b))
			}
		}
	}
	return 0, errors.ErrUnsupported
}

func oomCount(events string) (int, error) {
	for line := range strings.Lines(events) {
		var n int
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			return n, nil
		}
	}
	return 0, errors.ErrUnsupported
}
