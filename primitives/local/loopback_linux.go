package local

import "golang.org/x/sys/unix"

// raiseLoopback brings the loopback device up, which is down in a sandbox without a network. It
// ignores errors: they show when commands cannot connect.
func raiseLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	device, err := unix.NewIfreq("lo")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, device) != nil || device.Uint16()&unix.IFF_UP != 0 {
		return
	}
	device.SetUint16(device.Uint16() | unix.IFF_UP)
	_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, device)
}
