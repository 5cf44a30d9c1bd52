package local

import (
	"errors"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

const defaultTerm = "xterm-256color"

// openTTY connects the command to a new pseudo-terminal.
func (c *child) openTTY(size primitives.TerminalSize, spec *spawnSpec) (theirs descriptors, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	c.tty, err = unblocked(master)
	if err != nil {
		return nil, err
	}
	if err := setSize(c.tty, size); err != nil {
		return nil, err
	}
	// Return a duplicate: the caller closes it like the ends of pipes.
	fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if spec.cred != nil {
		// The command must be able to open its own terminal by name.
		_ = slave.Chown(int(spec.cred.Uid), -1)
	}
	spec.tty, spec.session = true, true
	spec.files = []uintptr{uintptr(fd), uintptr(fd), uintptr(fd)}
	return descriptors{fd}, nil
}

func setSize(tty *os.File, size primitives.TerminalSize) error {
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	return errors.Join(cerr, err)
}

// endOfFile returns what must be typed to end the input of the terminal: its end-of-file character,
// twice after an unfinished line, because the first one only submits that line. A terminal in raw
// mode has no such character.
func endOfFile(fd int, lineBegun bool) []byte {
	t, err := unix.IoctlGetTermios(fd, ioctlGetTermios)
	if err != nil || t.Lflag&unix.ICANON == 0 {
		return nil
	}
	eof := []byte{t.Cc[unix.VEOF]}
	if lineBegun {
		eof = append(eof, eof[0])
	}
	return eof
}
