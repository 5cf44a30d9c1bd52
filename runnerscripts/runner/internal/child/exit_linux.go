package child

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitExit waits until a child has exited and leaves it to be reaped.
func awaitExit(pid int, _ func() error) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
