package docker

import (
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// input is the standard input of a command. A goroutine writes to the connection:
// the engine goes on taking what nobody in the container will ever read until its
// buffers are full, so a write that is stuck must be given up.
type input struct {
	proc *plainProcess

	writing sync.Mutex // one Write at a time
	work    chan []byte
	done    chan error
	quit    chan struct{}
	closing sync.Once
	broken  bool // guarded by writing
}

// inputBlock is how much is handed to the connection at a time.
const inputBlock = 64 << 10

// stuck is after how long it is asked whether anybody still holds the input.
const stuck = 200 * time.Millisecond

func newInput(proc *plainProcess) *input {
	return &input{proc: proc, work: make(chan []byte), done: make(chan error, 1), quit: make(chan struct{})}
}

// feed writes to the connection until the input is closed.
func (in *input) feed() {
	for {
		select {
		case block := <-in.work:
			_, err := in.proc.conn.Conn.Write(block)
			in.done <- err
			if err != nil {
				return
			}
		case <-in.quit:
			if in.proc.cmd.TTY != nil {
				_, _ = in.proc.conn.Conn.Write([]byte{4}) // the end-of-file character
			} else {
				_ = in.proc.conn.CloseWrite()
			}
			return
		case <-in.proc.released:
			return
		}
	}
}

// Write implements io.Writer.
func (in *input) Write(p []byte) (n int, err error) {
	in.writing.Lock()
	defer in.writing.Unlock()
	for n < len(p) {
		block := append([]byte(nil), p[n:min(len(p), n+inputBlock)]...)
		took, err := in.hand(block)
		if took {
			n += len(block)
		}
		if err != nil {
			in.broken = true
			return n, err
		}
	}
	return n, nil
}

// hand has a block written, as long as somebody may read it. One that is under way when
// the input is closed was taken: the end comes behind it.
func (in *input) hand(block []byte) (took bool, err error) {
	select {
	case <-in.quit:
		return false, os.ErrClosed
	default:
	}
	select {
	case <-in.proc.exited:
		return false, os.ErrProcessDone
	default:
	}
	if in.broken {
		return false, io.ErrClosedPipe
	}
	select {
	case in.work <- block:
	case <-in.quit:
		return false, os.ErrClosed
	}
	tick := time.NewTicker(stuck)
	defer tick.Stop()
	for {
		select {
		case err := <-in.done:
			return err == nil, err
		case <-in.proc.exited:
			return false, os.ErrProcessDone
		case <-in.quit:
			return true, os.ErrClosed
		case <-tick.C:
			if in.proc.deaf() {
				return false, io.ErrClosedPipe
			}
		}
	}
}

// Close is the end of input.
func (in *input) Close() error {
	in.closing.Do(func() { close(in.quit) })
	return nil
}

// deaf reports whether no process of the command has a standard input any more.
func (proc *plainProcess) deaf() bool {
	ctx, cancel := proc.within(plainCall)
	defer cancel()
	_, status, err := proc.p.request(ctx, proc.cmd.User, "listening", strconv.Itoa(proc.pid), proc.mark())
	return err == nil && status != 0
}

// noInput is the standard input of a command without one.
type noInput struct{}

func (noInput) Write([]byte) (int, error) { return 0, os.ErrClosed }

func (noInput) Close() error { return nil }
