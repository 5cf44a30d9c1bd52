package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// rights is a Unix socket over which the host passes descriptors to its guest. The guest cannot
// pass any to the host: the host uses plain reads, so the kernel discards them.
type rights struct {
	*net.UnixConn
	oob [64]byte // room for the control message of maxRights descriptors

	passed []*os.File // received, and not yet claimed by the frame they came with
}

// maxRights is how many descriptors go with one frame.
const maxRights = 2

// canPass reports whether this system can pass descriptors.
const canPass = true

func newRights(c *net.UnixConn) *rights { return &rights{UnixConn: c} }

// Read keeps the descriptors that come with the bytes. The kernel hands them out
// with the first byte that they were sent with, and ends the read before the next
// ones.
func (r *rights) Read(p []byte) (int, error) {
	n, oobn, flags, _, err := r.ReadMsgUnix(p, r.oob[:])
	if err != nil || n <= 0 {
		return 0, err // io.EOF at the end
	}
	if flags&syscall.MSG_CTRUNC != 0 {
		err = fmt.Errorf("%w: too many descriptors", errProtocol)
	}
	if oobn == 0 {
		return n, err
	}
	messages, perr := syscall.ParseSocketControlMessage(r.oob[:oobn])
	if perr != nil {
		return n, errors.Join(err, perr)
	}
	if len(r.passed) > 0 {
		err = fmt.Errorf("%w: descriptors that belong to nothing", errProtocol)
	}
	for i := range messages {
		fds, perr := syscall.ParseUnixRights(&messages[i])
		err = errors.Join(err, perr)
		for _, fd := range fds {
			r.passed = append(r.passed, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return n, err
}

// take returns the descriptors that came with the frame that was just read.
func (r *rights) take() []*os.File {
	files := r.passed
	r.passed = nil
	return files
}

// writeWith writes all of p and passes files with its first byte.
func (r *rights) writeWith(p []byte, files []*os.File) (int, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := r.WriteMsgUnix(p, syscall.UnixRights(fds...), nil)
	if err != nil || n == len(p) {
		return n, err
	}
	m, err := r.Write(p[n:])
	return n + m, err
}

// newPipe creates a pipe. This program keeps the reading or the writing end and passes on the
// other. The passed end blocks, as commands expect of their output, and the command may open it
// again, as in "echo x >/dev/stderr".
func newPipe(reads bool) (kept, passed *os.File, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if !reads {
		p[0], p[1] = p[1], p[0]
	}
	err = errors.Join(syscall.SetNonblock(p[0], true), syscall.Fchmod(p[1], 0o622))
	kept, passed = os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe")
	if err != nil {
		return nil, nil, errors.Join(err, kept.Close(), passed.Close())
	}
	return kept, passed, nil
}

// growPipe enlarges the buffer of a pipe. If the kernel refuses, the pipe keeps its buffer.
func growPipe(f *os.File, size int) {
	const setPipeSize = 1031 // F_SETPIPE_SZ
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, setPipeSize, uintptr(size))
		})
	}
}
