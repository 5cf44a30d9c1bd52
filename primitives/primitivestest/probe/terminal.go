package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// terminalWords are about terminals.
func terminalWords() map[string]step {
	return map[string]step{
		// tty: print for each stream whether it is a terminal.
		"tty": {0, func(*script, []string) error {
			for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
				_, err := size(f)
				fmt.Fprintf(os.Stdout, "%t ", err == nil)
			}
			fmt.Fprintln(os.Stdout)
			return nil
		}},
		// size: print rows and columns.
		"size": {0, func(*script, []string) error {
			s, err := size(os.Stdout)
			fmt.Fprintf(os.Stdout, "size %d %d\n", s.rows, s.cols)
			return err
		}},
		// sizes: print the current size, and the size after every change.
		"sizes": {0, func(*script, []string) error {
			c := make(chan os.Signal, 16)
			signal.Notify(c, syscall.SIGWINCH)
			for {
				s, err := size(os.Stdout)
				if err != nil {
					return err
				}
				fmt.Fprintf(os.Stdout, "size %d %d\n", s.rows, s.cols)
				if err := forever(c); err != nil {
					return err
				}
			}
		}},
		// session: print whether this process leads its session and has a controlling terminal.
		"session": {0, func(*script, []string) error {
			sid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
			if errno != 0 {
				return errno
			}
			f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
			fmt.Fprintf(os.Stdout, "leader %t terminal %t\n", int(sid) == os.Getpid(), err == nil)
			if err == nil {
				return f.Close()
			}
			return nil
		}},
	}
}

type winsize struct{ rows, cols, x, y uint16 }

func size(f *os.File) (winsize, error) {
	var w winsize
	conn, err := f.SyscallConn()
	if err != nil {
		return w, err
	}
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&w)))
	})
	if errno != 0 {
		err = errors.Join(err, errno)
	}
	return w, err
}
