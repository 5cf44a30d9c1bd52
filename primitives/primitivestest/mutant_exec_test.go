package primitivestest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func execMutants() []mutant {
	return []mutant{
		{"the exit status is lost", "exit status 70 is data", `status: got primitives.ExitStatus{Code:0, Signal:"", Reason:"exited"}`, brokenStatus(func(s *primitives.ExitStatus) { s.Code = 0 })},
		{"an exit status above 128 becomes a signal", "exit status 137 is data", `status: got primitives.ExitStatus{Code:137, Signal:"KILL", Reason:"signaled"}`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Code > 128 {
				s.Signal, s.Reason = primitives.SIGKILL, primitives.ReasonSignaled
			}
		})},
		{"death by a signal is reported as success", "death by SIGTERM is code 143 and the signal", `status: got primitives.ExitStatus{Code:0, Signal:"", Reason:"exited"}`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Signal != "" {
				*s = primitives.ExitStatus{Reason: primitives.ReasonExited}
			}
		})},
		{"the name of the signal is lost", "death by SIGKILL is code 137 and the signal", `status: got primitives.ExitStatus{Code:137, Signal:"", Reason:"signaled"}`, brokenStatus(func(s *primitives.ExitStatus) { s.Signal = "" })},
		{"a reader that is closed reads on", "closing a reader early breaks the writer's pipe", `signal: got "", want "PIPE"`, brokenProcess(func(p *processFaults) {
			p.stdout = readCloser{p.Stdout(), closer(func() error {
				go func() { _, _ = io.Copy(io.Discard, p.Stdout()) }() // it ends with the process
				return nil
			})}
		})},
		{"a non-zero status is an error", "exit status 1 is data", ": exit status (stderr", brokenProcess(func(p *processFaults) {
			p.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
				s, err := p.Wait(ctx)
				if s.Code != 0 {
					err = errors.New("exit status")
				}
				return s, err
			}
		})},
		{"the host's environment is inherited", "the host's environment is not inherited", "PRIMITIVESTEST_HOST came from the host", brokenCommand(func(cmd *primitives.Command) {
			cmd.Env = slices.Concat(os.Environ(), cmd.Env)
		})},
		{"the first entry of a variable wins", "the last entry of a variable wins", `entries: got "PT_A=1", want "PT_A=3"`, brokenCommand(func(cmd *primitives.Command) { slices.Reverse(cmd.Env) })},
		{"an empty variable is dropped", "a variable holding nothing arrives as it is", `has no PT_VALUE=""`, brokenCommand(func(cmd *primitives.Command) {
			cmd.Env = slices.DeleteFunc(cmd.Env, func(e string) bool { return strings.HasSuffix(e, "=") })
		})},
		{"the working directory is ignored", "a relative working directory starts at the workspace", "working directory: got", brokenCommand(func(cmd *primitives.Command) { cmd.Dir = "" })},
		{"arguments go through a shell", "blanks around an argument arrives as it is", "arguments: got \"a|b|last|a|b\", want \"  a  b\\t|last|  a  b\\t\"", brokenCommand(func(cmd *primitives.Command) {
			cmd.Args = strings.Fields(strings.Join(cmd.Args, " "))
		})},
		{"empty arguments are dropped", "an empty argument arrives as it is", `arguments: got "last", want "|last|"`, brokenCommand(func(cmd *primitives.Command) {
			cmd.Args = slices.DeleteFunc(slices.Clone(cmd.Args), func(a string) bool { return a == "" })
		})},
		{"arguments are cut at 64 KiB", "a megabyte of arguments arrives whole", `sum: got "16 1048560`, brokenCommand(func(cmd *primitives.Command) {
			for i, a := range cmd.Args {
				cmd.Args[i] = a[:min(len(a), 64<<10-1)]
			}
		})},
		{"a command inherits a descriptor", "a command inherits its three streams only", `descriptors: got "0 1 2 9", want "0 1 2"`, brokenCommand(leakDescriptor)},
		{"a command on a terminal inherits a descriptor", "a command on a terminal inherits its three streams only", `descriptors: got "0 1 2 9", want "0 1 2"`, brokenCommand(leakDescriptor)},
		{"a durable command inherits a descriptor", "a durable command inherits its three streams only", `descriptors: got "0 1 2 9", want "0 1 2"`, brokenCommand(leakDescriptor)},
		{"a missing program is exit status 127", "a missing program in PATH is ErrCommandNotFound", `Exec ["no-such-program-anywhere"] in "": no error`, broken(func(f *faults) {
			f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
				p, err := f.Exec(ctx, cmd)
				if errors.Is(err, primitives.ErrCommandNotFound) {
					return f.Exec(ctx, primitives.Command{Args: []string{"/bin/sh", "-c", "exit 127"}})
				}
				return p, err
			}
		})},
		{"a missing working directory is a missing program", "a missing working directory is not a missing program", "Exec: exec: command not found is ErrCommandNotFound", broken(func(f *faults) {
			f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
				p, err := f.Exec(ctx, cmd)
				if errors.Is(err, primitives.ErrWorkingDir) {
					err = &primitives.Error{Op: "exec", Err: primitives.ErrCommandNotFound}
				}
				return p, err
			}
		})},
		{"a signal after the exit succeeds", "a signal after the exit is os.ErrProcessDone", "Signal after the exit: <nil>, want os.ErrProcessDone", brokenProcess(func(p *processFaults) {
			p.signal = func(ctx context.Context, sig primitives.Signal) error {
				if err := p.Signal(ctx, sig); !errors.Is(err, os.ErrProcessDone) {
					return err
				}
				return nil
			}
		})},
		{"errors do not say where", "the error of a missing file says which", "error is (*primitives.Error)(nil), want one with operation, backend and target", broken(func(f *faults) {
			f.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
				r, err := f.Open(ctx, name)
				var where *primitives.Error
				if errors.As(err, &where) {
					err = where.Err
				}
				return r, err
			}
		})},
	}
}

// leakDescriptor gives the command a fourth descriptor.
func leakDescriptor(cmd *primitives.Command) {
	cmd.Args = append([]string{"/bin/sh", "-c", `exec 9</dev/null; exec "$0" "$@"`}, cmd.Args...)
}

// brokenOutput changes what is read from standard output.
func brokenOutput(change func(r io.Reader) io.Reader) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return brokenProcess(func(p *processFaults) {
		p.stdout = readCloser{change(p.Stdout()), p.Stdout()}
	})
}

type readCloser struct {
	io.Reader
	io.Closer
}

// closer implements io.Closer by a function.
type closer func() error

func (c closer) Close() error { return c() }

// closedAtEnd closes its reader at EOF.
type closedAtEnd struct{ io.ReadCloser }

func (c closedAtEnd) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		_ = c.Close() // the fault
	}
	return n, err
}

// hungUp replaces EOF by the error of a terminal at its end.
type hungUp struct{ r io.Reader }

func (h *hungUp) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if errors.Is(err, io.EOF) {
		err = syscall.EIO
	}
	return n, err
}

// serialInput performs one operation at a time.
type serialInput struct {
	io.WriteCloser
	mu sync.Mutex
}

func (s *serialInput) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.WriteCloser.Write(b)
}

func (s *serialInput) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.WriteCloser.Close()
}

// wholeInput reports that everything was written.
type wholeInput struct{ io.WriteCloser }

func (w wholeInput) Write(b []byte) (int, error) {
	_, err := w.WriteCloser.Write(b)
	return len(b), err
}

// perRead changes each piece of a read separately.
type perRead struct {
	r      io.Reader
	change func(b []byte) []byte
	rest   []byte
	err    error
}

func (p *perRead) Read(b []byte) (int, error) {
	for len(p.rest) == 0 && p.err == nil {
		piece := make([]byte, 4096)
		n, err := p.r.Read(piece)
		p.rest, p.err = p.change(piece[:n]), err
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	if n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, p.err
}

// hoard reads everything as fast as it arrives and keeps it.
type hoard struct {
	mu    sync.Mutex
	more  *sync.Cond
	buf   bytes.Buffer
	ended bool
}

func newHoard(r io.Reader) io.Reader {
	h := &hoard{}
	h.more = sync.NewCond(&h.mu)
	go func() {
		piece := make([]byte, 1<<20)
		for {
			n, err := r.Read(piece)
			h.mu.Lock()
			h.buf.Write(piece[:n])
			h.ended = err != nil
			h.more.Broadcast()
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return h
}

func (h *hoard) Read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.buf.Len() == 0 && !h.ended {
		h.more.Wait()
	}
	return h.buf.Read(b)
}

func streamMutants() []mutant {
	utf8 := func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("\uFFFD")) }
	return []mutant{
		{"standard error is mixed into standard output", "standard error arrives apart from standard output", "stdout: got \"boof\\nbaz\\n\", want \"boof\\n\"", brokenCommand(func(cmd *primitives.Command) { cmd.MergeStderr = true })},
		{"standard error is not merged", "merged output is in the order of writing", `stdout: got "o0 o1 o2 o3`, brokenCommand(func(cmd *primitives.Command) { cmd.MergeStderr = false })},
		{"output that is no UTF-8 is mangled", "every byte value arrives", "stdout: got \"\\x00\\x01", brokenOutput(func(r io.Reader) io.Reader { return &perRead{r: r, change: utf8} })},
		{"a rune is mangled where a read ends", "a rune written in two parts arrives whole", "output: got \"\uFFFD", brokenOutput(func(r io.Reader) io.Reader { return &perRead{r: r, change: utf8} })},
		{"the output is trimmed", "blanks and newlines around the output are kept", "stdout: got \"x\", want \" \\n\\n x \\n\\n\"", brokenOutput(func(r io.Reader) io.Reader { return &perRead{r: r, change: bytes.TrimSpace} })},
		{"carriage returns are removed", "carriage returns are kept", "stdout: got \"a\\nbc\\n\", want \"a\\r\\nb\\rc\\n\\r\"", brokenOutput(func(r io.Reader) io.Reader {
			return &perRead{r: r, change: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r"), nil) }}
		})},
		{"the output ends after 64 KiB", "ten mebibytes without a newline arrive whole", "output is whole: got false, want true", brokenOutput(func(r io.Reader) io.Reader {
			left := 64 << 10
			return &perRead{r: r, change: func(b []byte) []byte {
				b = b[:min(len(b), left)]
				left -= len(b)
				return b
			}}
		})},
		{"the output is hoarded in memory", "a command waits for its reader and memory stays bounded", "MiB were accepted while only 1 MiB was read", brokenOutput(newHoard)},
		{"Wait throws away what was not read yet", "what was printed before the exit can be read after Wait", "waiting for end of the stream: read stdout: file already closed", brokenProcess(func(p *processFaults) {
			p.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
				s, err := p.Wait(ctx)
				return s, errors.Join(err, p.Stdout().Close())
			}
		})},
		{"Wait waits for the end of the output", "Wait does not wait for those who hold the streams", inVain + " for the command to exit", brokenProcess(func(p *processFaults) {
			var once sync.Once
			kept := &bytes.Buffer{}
			p.stdout = readCloser{kept, p.Stdout()}
			p.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
				once.Do(func() { _, _ = io.Copy(kept, p.Stdout()) }) // ends with the process
				return p.Wait(ctx)
			}
		})},
		{"closing standard input does nothing", "closing standard input ends it and leaves the output open", inVain + " for end of the stream", brokenProcess(func(p *processFaults) {
			p.stdin = writeCloser{p.Stdin(), func() error { return nil }}
		})},
		{"closing standard input ends the command", "closing standard input ends it and leaves the output open", "waiting for end of the stream: read stdout: file already closed", brokenProcess(func(p *processFaults) {
			p.stdin = writeCloser{p.Stdin(), func() error { return p.Close() }}
		})},
		{"a write to a command that has exited succeeds", "writing to a command that has exited is an error", "96 MiB were accepted", brokenProcess(func(p *processFaults) {
			p.stdin = writeCloser{io.Discard, func() error { return nil }}
		})},
	}
}

type writeCloser struct {
	io.Writer
	close func() error
}

func (w writeCloser) Close() error { return w.close() }

func endingMutants() []mutant {
	leaderOnly := broken(func(f *faults) {
		f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
			limit := cmd.Timeout
			cmd.Timeout = 0
			p, err := f.Exec(ctx, cmd)
			if err != nil || limit == 0 {
				return p, err
			}
			timer := time.AfterFunc(limit, func() { _ = p.Signal(ctx, primitives.SIGKILL) }) // or the process has exited
			return faultyProcess(p, func(p *processFaults) {
				p.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
					s, err := p.Wait(ctx)
					timer.Stop()
					s.Reason = primitives.ReasonTimeout
					return s, err
				}
				p.close = func() error { timer.Stop(); return nil }
			}), nil
		}
	})
	neverKilled := broken(func(f *faults) {
		f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
			cmd.Grace = time.Hour
			p, err := f.Exec(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return faultyProcess(p, func(p *processFaults) {
				p.close = func() error {
					_ = p.Signal(context.WithoutCancel(ctx), primitives.SIGKILL) // or the process has exited
					return p.Close()
				}
			}), nil
		}
	})
	return []mutant{
		{"a timeout ends the process group only", "a timeout ends a child in a session of its own", inVain + ": processes live on", leaderOnly},
		{"there is no timeout", "a timeout is a reason, not an error", `status: got primitives.ExitStatus{Code:0, Signal:"", Reason:"exited"}`, brokenCommand(func(cmd *primitives.Command) {
			cmd.Args, cmd.Timeout = append(cmd.Args[:1:1], "exit", "0"), 0
		})},
		{"a timeout looks like a signal", "a timeout is a reason, not an error", `status: got primitives.ExitStatus{Code:143, Signal:"TERM", Reason:"signaled"}`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Reason == primitives.ReasonTimeout {
				s.Reason = primitives.ReasonSignaled
			}
		})},
		{"a timeout is only told by the signal", "a command that exits with 0 within the grace has timed out", `status: got primitives.ExitStatus{Code:0, Signal:"", Reason:"exited"}`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Signal == "" {
				s.Reason = primitives.ReasonExited
			}
		})},
		{"every SIGTERM is a timeout", "a death by SIGTERM before the timeout is no timeout", `status: got primitives.ExitStatus{Code:143, Signal:"TERM", Reason:"timeout"}`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Signal == primitives.SIGTERM {
				s.Reason = primitives.ReasonTimeout
			}
		})},
		{"nobody is asked politely", "a command that exits with 0 within the grace has timed out", `status: got primitives.ExitStatus{Code:137, Signal:"KILL", Reason:"timeout"}`, brokenCommand(func(cmd *primitives.Command) { cmd.Grace = -1 })},
		{"nobody is ever killed", "a cancelled context kills what ignores SIGTERM", inVain + " for the command to exit", neverKilled},
		{"a cancelled context is ignored", "a cancelled context ends the command politely", inVain + " for the command to exit", broken(func(f *faults) {
			f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
				return f.Exec(context.WithoutCancel(ctx), cmd)
			}
		})},
		{"a cancellation looks like a signal", "closing a running process is a cancellation", `reason: got "signaled", want "cancelled"`, brokenStatus(func(s *primitives.ExitStatus) {
			if s.Reason == primitives.ReasonCancelled {
				s.Reason = primitives.ReasonSignaled
			}
		})},
		{"closing a process leaves it running", "closing a process ends a child", inVain + ": processes live on", brokenProcess(func(p *processFaults) { p.close = func() error { return nil } })},
		{"the size of a terminal is ignored", "the terminal has its size from the start", "size: got \"size 24 80\\r\\n\", want \"size 31 117\\r\\n\"", brokenCommand(func(cmd *primitives.Command) {
			cmd.TTY = &primitives.TerminalSize{Rows: 24, Cols: 80}
		})},
		{"a terminal is not resized", "of several resizes the last one counts", inVain + " for 1 lines \"size 100 101\\r\"", brokenProcess(func(p *processFaults) {
			p.resize = func(context.Context, primitives.TerminalSize) error { return nil }
		})},
		{"a terminal is a pair of pipes", "all three streams are the terminal", "terminals: got \"false false false \\n\", want \"true true true \\r\\n\"", brokenCommand(func(cmd *primitives.Command) { cmd.TTY, cmd.Stdin = nil, true })},
		{"the end of a terminal's output is an error", "output ends though a background holds the terminal", "waiting for end of the stream: input/output error", brokenOutput(func(r io.Reader) io.Reader { return &hungUp{r} })},
		{"a terminal hangs up at the end of its output", "the end of input and output does not hang up", `status: got primitives.ExitStatus{Code:129, Signal:"HUP", Reason:"signaled"}`, brokenProcess(func(p *processFaults) {
			p.stdout = readCloser{closedAtEnd{p.Stdout()}, p.Stdout()}
		})},
		{"closing the input waits for its writer", "the input of a terminal can be closed when no more fits into it, and ends behind what fitted", inVain + " for closing the input", brokenProcess(func(p *processFaults) {
			p.stdin = &serialInput{WriteCloser: p.Stdin()}
		})},
		{"a write that is cut off counts as whole", "input can be closed when no more fits into it, and ends behind what fitted", `sum: got "`, brokenProcess(func(p *processFaults) {
			p.stdin = wholeInput{p.Stdin()}
		})},
		{"the line ends of a terminal are changed", "the terminal ends lines with CR LF", "output: got \"a\\nb\\n\", want \"a\\r\\nb\\r\\n\"", brokenOutput(func(r io.Reader) io.Reader {
			return &perRead{r: r, change: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }}
		})},
	}
}
