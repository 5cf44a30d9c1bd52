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

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

// dirPrefix is the prefix of the names of servers' directories; the process ID follows.
const dirPrefix = "testmodal-"

// Main runs the tests of a package and exits. It fails if their servers leak goroutines,
// processes, mounts or directories.
func Main(m *testing.M) {
	code := Check(m.Run())
	if code == 0 {
		if err := testleak.Find(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "left by the tests:", err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // this is the tests' main
}

// Check is for packages whose TestMain does more than Main. It takes the exit status of the
// tests and returns 1 if servers leak processes, mounts or directories.
func Check(code int) int {
	if code != 0 {
		return code
	}
	if err := leftBehind(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "left by the tests:", err)
		return 1
	}
	return 0
}

// leftBehind returns an error that names the leaked processes, mounts and directories of
// this process. The collector process of local sandboxes lives as long as this process.
func leftBehind() error {
	var errs []error
	for _, parent := range []string{os.TempDir(), memoryDir} {
		dirs, err := filepath.Glob(filepath.Join(parent, fmt.Sprintf("%s%d-*", dirPrefix, os.Getpid())))
		errs = append(errs, err)
		for _, dir := range dirs {
			errs = append(errs, fmt.Errorf("the directory %s", dir))
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(mounts), "/"+dirPrefix) {
		errs = append(errs, errors.New("a mount"))
	}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, file := range children {
		list, _ := os.ReadFile(file) // the thread may have ended
		for child := range strings.FieldsSeq(string(list)) {
			if name, _ := os.ReadFile("/proc/" + child + "/cmdline"); !strings.HasPrefix(string(name), "agentenv-collector\x00") {
				errs = append(errs, fmt.Errorf("the process %s, %q", child, name))
			}
		}
	}
	return errors.Join(errs...)
}

// memoryDir is a directory in memory, on Linux. It makes the many small files of the lowest
// layer of root file systems fast.
const memoryDir = "/dev/shm"

// baseParent returns where to create the lowest layer of root file systems.
func baseParent(dir string) string {
	if info, err := os.Stat(memoryDir); err == nil && info.IsDir() && isolated() {
		return memoryDir
	}
	return dir
}

// newDir creates a directory whose name contains the process ID.
func newDir(parent string) (string, error) {
	return os.MkdirTemp(parent, fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
}

// removeStale removes the directories of servers whose process was killed.
func removeStale(dir string) {
	for _, parent := range []string{dir, memoryDir} {
		dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*-*"))
		for _, d := range dirs {
			number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(d), dirPrefix), "-")
			pid, err := strconv.Atoi(number)
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				_ = os.RemoveAll(d) // another process may remove it, too
			}
		}
	}
}
