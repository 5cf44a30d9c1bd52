package testmodal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// dirPrefix begins the name of the directory of each server; the number of its
// process follows.
const dirPrefix = "testmodal-"

// Main runs a package's tests and then fails them if a server of theirs has left
// something: goroutines, processes, mounts or directories.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leftovers(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "left by the tests:", err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // this is the tests' main
}

// leftovers says what this process has left.
func leftovers() error { return errors.Join(goleak.Find(), leftBehind()) }

// leftBehind is leftovers without goroutines.
func leftBehind() error {
	var errs []error
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-*", dirPrefix, os.Getpid())))
	errs = append(errs, err)
	for _, dir := range dirs {
		errs = append(errs, fmt.Errorf("the directory %s", dir))
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(mounts), "/"+dirPrefix) {
		errs = append(errs, errors.New("a mount"))
	}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, file := range children {
		if list, err := os.ReadFile(file); err == nil && len(strings.TrimSpace(string(list))) > 0 {
			errs = append(errs, fmt.Errorf("the processes %s", list))
		}
	}
	return errors.Join(errs...)
}

// removeStale removes the directories of servers whose process was killed.
func removeStale(dir string) {
	if dir == "" {
		dir = os.TempDir()
	}
	dirs, _ := filepath.Glob(filepath.Join(dir, dirPrefix+"*-*"))
	for _, d := range dirs {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(d), dirPrefix), "-")
		pid, err := strconv.Atoi(number)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(d) // another process may be at it, too
		}
	}
}
