package local

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitid waits for a child to exit and leaves it to be reaped.
func waitid(idType, id int, info *[128]byte) error {
	const exitedNoReap = 0x4 | 0x20 // WEXITED|WNOWAIT
	_, _, errno := unix.Syscall6(syscall.SYS_WAITID, uintptr(idType), uintptr(id),
		uintptr(unsafe.Pointer(info)), exitedNoReap, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
