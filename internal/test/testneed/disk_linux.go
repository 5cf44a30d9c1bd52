package testneed

import (
	"syscall"
	"testing"
)

// SmallDisk returns a folder on a file system of 1 MiB, which needs the right to mount. It is
// unmounted at the end of the test.
func SmallDisk(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("this test needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		// A child of another test that is between fork and exec may have files there.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
