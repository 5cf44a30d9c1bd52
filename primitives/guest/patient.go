package guest

import (
	"io"
	"sync"
	"time"
)

const (
	// patience is for how long an end keeps what the other does not wait for. Most
	// commands are answered within it, so that all that is said about one goes in a
	// single write.
	patience = 5 * time.Millisecond
	// maxLate is how much of it is kept at most, in bytes.
	maxLate = 16 * muxHeader
)

// patient is a byte stream. What is written later is kept a moment, for the next write
// to take it along: every write wakes all that is between the two ends, on machines
// where the command that was just started wants to run.
type patient struct {
	io.ReadWriteCloser
	pipes             *stdio // that it is; nil if it is not
	readLot, wroteLot sync.Once
	busy              func() // called while much data is read

	mu     sync.Mutex
	late   []byte // to go first
	timer  *time.Timer
	closed bool
	err    error // of what was written late
}

func newPatient(rw io.ReadWriteCloser) *patient {
	p := &patient{ReadWriteCloser: rw, busy: func() {}}
	p.pipes, _ = rw.(*stdio)
	p.timer = time.AfterFunc(time.Hour, p.flush)
	p.timer.Stop()
	return p
}

// Write writes what was kept, and then b.
func (p *patient) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	if len(b) > smallBody && p.pipes != nil {
		p.wroteLot.Do(p.pipes.growOut)
	}
	if len(p.late) == 0 {
		return p.ReadWriteCloser.Write(b)
	}
	p.timer.Stop()
	if len(b) > smallBody {
		p.write()
		if p.err != nil {
			return 0, p.err
		}
		return p.ReadWriteCloser.Write(b)
	}
	p.late = append(p.late, b...)
	p.write()
	if p.err != nil {
		return 0, p.err
	}
	return len(b), nil
}

// WriteLater keeps b for the next Write, which does not come before patience ends.
func (p *patient) WriteLater(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	if len(p.late) == 0 && !p.closed {
		p.timer.Reset(patience)
	}
	if p.late = append(p.late, b...); len(p.late) >= maxLate {
		p.timer.Stop()
		p.write()
	}
	return len(b), p.err
}

// bulk notes that much data is being read.
func (p *patient) bulk() {
	p.busy()
	if p.pipes != nil {
		p.readLot.Do(p.pipes.growIn)
	}
	p.hurry()
}

// hurry has what is kept written now, and waits for nothing: who reads the stream
// must not wait for who writes it.
func (p *patient) hurry() {
	if !p.mu.TryLock() {
		return // it is being written
	}
	defer p.mu.Unlock()
	if len(p.late) > 0 && !p.closed {
		p.timer.Reset(0)
	}
}

// takeLate hands over what is kept, which is written by other means now.
func (p *patient) takeLate() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	late := p.late
	p.late = nil
	return late, p.err
}

// flush ends the patience.
func (p *patient) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.late) > 0 && !p.closed && p.err == nil {
		p.write()
	}
}

// write writes what is kept; the caller holds the lock.
func (p *patient) write() {
	_, p.err = p.ReadWriteCloser.Write(p.late)
	p.late = p.late[:0]
}

// Close closes the stream. What is kept says nothing to an end that learns that.
func (p *patient) Close() error {
	err := p.ReadWriteCloser.Close() // which ends a write
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.timer.Stop()
	return err
}
