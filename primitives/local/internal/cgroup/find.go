package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	dir, ok := locate(string(mounts), string(own))
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
// /proc/self/mountinfo and /proc/self/cgroup.
func locate(mounts, own string) (string, bool) {
	path, ok := "", false
	for line := range strings.Lines(own) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			path, ok = rest, true
		}
	}
	if !ok {
		return "", false
	}
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields, fstype := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(fstype) < 1 || fstype[0] != "cgroup2" {
			continue
		}
		rel, err := filepath.Rel(fields[3], path)
		if err == nil && !strings.HasPrefix(rel, "..") {
			return filepath.Join(fields[4], rel), true
		}
	}
	return "", false
}

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
	dir, ok := locate(string(mounts), string(own))
	for ; ok && len(dir) > 1; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "memory.events"))
		if err == nil {
			return oomCount(string(b))
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
