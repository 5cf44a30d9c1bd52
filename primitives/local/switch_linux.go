package local

import (
	"os"

	"golang.org/x/sys/unix"
)

// maySwitchUser reports whether commands can run as another user. In a container root often cannot
// do that.
func maySwitchUser() bool {
	if os.Geteuid() != 0 {
		return false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return true // let the kernel decide
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return data[0].Effective&need == need
}
