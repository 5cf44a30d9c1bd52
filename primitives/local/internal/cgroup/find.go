package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Parent returns the control group of this process if groups can be made below
// it. Otherwise the error says why not and is errors.ErrUnsupported.
func Parent() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	dir, ok := locate(string(mounts), string(own), "")
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

// locate finds the directory of this process's group from the contents of
// /proc/self/mountinfo and /proc/self/cgroup: of version 2, or for a controller
// that one of version 1.
func locate(mounts, own, controller string) (string, bool) {
	path, ok := "", false
	for line := range strings.Lines(own) {
		// The number of the hierarchy, its controllers, the path.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (controller == "" && f[0] == "0" || controller != "" && listed(f[1], controller)) {
			path, ok = f[2], true
		}
	}
	if !ok {
		return "", false
	}
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
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

// listed reports whether a list with commas has a word.
func listed(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// OOMKills returns how many processes the kernel has killed for want of memory in
// the nearest group that counts them, this process's own or one above it.
func OOMKills() (int, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	for _, version := range []struct{ controller, file string }{{"", "memory.events"}, {"memory", "memory.oom_control"}} {
		dir, ok := locate(string(mounts), string(own), version.controller)
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
