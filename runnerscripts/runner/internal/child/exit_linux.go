package child

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitExit waits until a child has exited, without reaping it if the system allows that.
func awaitExit(pid int, reap func() error) {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil {
		_ = reap()
	}
}
