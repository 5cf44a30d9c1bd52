package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// exitDelay is how long a script may live on after it closed its output or was asked to end.
	exitDelay = 5 * time.Second
	// quietDelay is how long the output of an exited script must be silent before cutQuiet
	// closes it, though children of the script may still hold it open.
	quietDelay = 250 * time.Millisecond
	// maxQuietChecks is how often cutQuiet waits again for output that continues.
	maxQuietChecks = 8
	// QueuedControls is how many lines may wait for a script that does not read.
	QueuedControls = 16
)

// Process is one running script: it decodes what the script prints and keeps the end of its
// standard error. The caller that starts it must close it.
type Process struct {
	Script string // its name
	proc   primitives.Process
	out    *watchedReader // its standard output
	// from is where out begins in the whole output. Adopted means that an earlier program
	// started the script.
	from    int64
	Adopted bool
	// Taken is where the last followed event ends in the whole output. Only the query that is
	// followed uses it, one at a time.
	Taken int64

	// events delivers what the script prints. It is closed after the output has ended.
	events chan Printed
	// input queues lines for the script; nil is the end of its input.
	input chan []byte
	// discard, when closed, makes the reader drop events instead of waiting for a receiver.
	discard     chan struct{}
	discardOnce sync.Once
	// exited is closed when status and waitErr are known.
	exited  chan struct{}
	status  primitives.ExitStatus
	waitErr error
	// readErr is why reading ended; valid after events was closed.
	readErr error
	cut     atomic.Bool // the output was closed because it was silent
	stderr  *redact.Tail
	// stderrEnd is closed when standard error has ended.
	stderrEnd chan struct{}

	forget   func()        // releases the context of the process
	stop     chan struct{} // closed by close
	stopOnce sync.Once
	tasks    sync.WaitGroup
}

// follow takes over a started process, whose output is read from a position on. It uses only the
// values of ctx: close ends the process.
func follow(ctx context.Context, script string, proc primitives.Process, from int64, maxLine int, hide redact.Redactor, forget func()) *Process {
	p := &Process{
		Script: script, proc: proc, forget: forget, out: &watchedReader{r: proc.Stdout()}, from: from, Taken: from,
		events:  make(chan Printed),
		input:   make(chan []byte, QueuedControls),
		discard: make(chan struct{}),
		exited:  make(chan struct{}),
		stop:    make(chan struct{}),
		stderr:  &redact.Tail{Hide: hide},

		stderrEnd: make(chan struct{}),
	}
	ctx = context.WithoutCancel(ctx)
	ended := make(chan struct{}) // reading stdout has ended
	p.tasks.Go(func() {
		p.status, p.waitErr = proc.Wait(ctx)
		close(p.exited)
	})
	p.tasks.Go(func() { defer close(p.stderrEnd); _, _ = io.Copy(p.stderr, proc.Stderr()) })
	p.tasks.Go(p.write)
	p.tasks.Go(func() { defer close(ended); p.read(maxLine) })
	p.tasks.Go(func() { p.cutQuiet(ended) })
	return p
}

// Printed is an event that a script has printed.
type Printed struct {
	runnerscripts.Event
	End int64 // where its line ends in the whole output
}

// read decodes standard output to its end.
func (p *Process) read(maxLine int) {
	defer close(p.events)
	dec := runnerscripts.NewDecoder(p.out, maxLine)
	for {
		ev, err := dec.Next()
		if err != nil {
			if p.cut.Load() {
				err = io.EOF
			}
			p.readErr = err
			return
		}
		select {
		case p.events <- Printed{ev, p.from + dec.Offset()}:
		case <-p.discard:
		}
	}
}

// write writes lines to standard input. If the script does not take them, its end shows it.
func (p *Process) write() {
	in := p.proc.Stdin()
	defer func() { _ = in.Close() }() // end of input; on an error, the script's end shows it
	for {
		select {
		case line := <-p.input:
			if line == nil {
				return
			}
			if _, err := in.Write(line); err != nil {
				return
			}
		case <-p.stop:
			return
		case <-p.exited:
			return
		}
	}
}

// cutQuiet closes the output of an exited script once nothing more comes, even if an orphan of
// the script still holds it open. If an orphan keeps printing, cutQuiet waits maxQuietChecks times:
// what the script itself printed is read without waiting.
func (p *Process) cutQuiet(ended <-chan struct{}) {
	select {
	case <-p.exited:
	case <-ended:
		return
	}
	tick := time.NewTicker(quietDelay)
	defer tick.Stop()
	last, waits := int64(-1), 0
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		reads, waiting := p.out.state()
		if waiting {
			waits++
		}
		if waiting && (reads == last || waits > maxQuietChecks) {
			p.cut.Store(true)
			_ = p.proc.Stdout().Close()
			return
		}
		last = reads
	}
}

// Send queues a line for the script. It fails if the script has exited, or if the queue is full
// until ctx is done.
func (p *Process) Send(ctx context.Context, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Script, err)
	}
	return p.queue(ctx, append(line, '\n'))
}

func (p *Process) queue(ctx context.Context, line []byte) error {
	if p.isExited() {
		return fmt.Errorf("%s: %w", p.Script, ErrExited)
	}
	select {
	case <-p.stop:
		return ErrClosed
	default:
	}
	select {
	case p.input <- line: // also if ctx is done: an interrupt follows the prompt
		return nil
	default:
	}
	select {
	case p.input <- line:
		return nil
	case <-p.exited:
		return fmt.Errorf("%s: %w", p.Script, ErrExited)
	case <-p.stop:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// How a script breaks its protocol.
var (
	ErrNoResult  = errors.New("the script ended without a result line; print {\"type\":\"result\",\"ok\":true} as the last line")
	ErrStaysOpen = errors.New("the script closed its output and did not exit")
)

// isExited reports whether the script has exited.
func (p *Process) isExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Failure returns how a script ended, after its events have ended. cause is the error if neither
// its status nor its own result says more.
func (p *Process) Failure(result *runnerscripts.Result, cause error) *runnerscripts.ScriptError {
	broken := p.readErr != nil && !errors.Is(p.readErr, io.EOF)
	ended := !broken && patience.Wait(p.exited, exitDelay) && patience.Wait(p.stderrEnd, quietDelay)
	exited := p.isExited()
	p.Close()
	e := &runnerscripts.ScriptError{Script: p.Script, Stderr: p.stderr.String()}
	if exited {
		e.Status = p.status
	}
	var unreached error
	if d, ok := p.proc.(*durableProcess); ok {
		unreached = d.unreached()
	}
	switch {
	case unreached != nil:
		e.Err = unreached
	case result != nil && result.Error != nil:
		failure := *result.Error
		failure.Message = p.stderr.Hide.Text(failure.Message)
		e.Failure = &failure
	case broken:
		e.Err = p.readErr
	case !exited && !ended:
		e.Err = ErrStaysOpen
	case p.waitErr != nil:
		e.Err = p.waitErr
	case p.status.Reason == primitives.ReasonLost:
		e.Err = primitives.ErrUnavailable
	case p.status.Reason == primitives.ReasonNoSpace:
		e.Err = fmt.Errorf("%w: what the agent said could not be kept, so it was ended; make room there and go on", primitives.ErrNoSpace)
	default:
		e.Err = cause
	}
	return e
}

// Offer queues a line if the queue has room.
func (p *Process) Offer(v any) bool {
	line, err := json.Marshal(v)
	if err != nil {
		return false
	}
	return p.offerLine(append(line, '\n'))
}

func (p *Process) offerLine(line []byte) bool {
	select {
	case p.input <- line:
		return true
	default:
		return false
	}
}

// Shutdown asks the script to end, waits up to exitDelay, and closes it.
func (p *Process) Shutdown() {
	p.discardOnce.Do(func() { close(p.discard) })
	if p.Offer(runnerscripts.Control{Type: runnerscripts.ControlShutdown}) && p.offerLine(nil) {
		patience.Wait(p.exited, exitDelay)
	}
	p.Close()
}

// Close ends the script if it still runs, and returns when all tasks have ended.
func (p *Process) Close() {
	p.stopOnce.Do(func() {
		p.discardOnce.Do(func() { close(p.discard) })
		close(p.stop)
		_ = p.proc.Close()
		p.forget()
	})
	p.tasks.Wait()
}

// Leave closes the process without ending a durable script.
func (p *Process) Leave() {
	if d, ok := p.proc.(*durableProcess); ok {
		d.leave()
	}
	p.Close()
}

// watchedReader reports whether a read is waiting for input.
type watchedReader struct {
	r       io.Reader
	reads   atomic.Int64
	waiting atomic.Bool
}

func (w *watchedReader) Read(b []byte) (int, error) {
	w.waiting.Store(true)
	n, err := w.r.Read(b)
	w.waiting.Store(false)
	w.reads.Add(1)
	return n, err
}

func (w *watchedReader) state() (reads int64, waiting bool) {
	return w.reads.Load(), w.waiting.Load()
}

// Events delivers what the script prints. It is closed after the output has ended.
func (p *Process) Events() <-chan Printed { return p.events }
