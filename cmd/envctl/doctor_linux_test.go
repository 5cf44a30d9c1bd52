package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

func TestDoctorFindsAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("this test needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f := checkDisk("disk", "remove something", func() (string, error) { return filepath.Join(dir, "not", "yet"), nil })
	if f.Status != statusMissing || f.Detail != "1 MiB free ("+dir+")" || f.Fix != "make room, remove something" {
		t.Errorf("%+v", f)
	}
}
