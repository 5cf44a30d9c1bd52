package primitivestest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// flowRules returns the rules that streams are independent and bounded, and end in time.
func flowRules() []rule {
	return []rule{
		{name: "a mebibyte on both streams at once arrives whole", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("floodboth", strconv.Itoa(1<<20)), primitives.RunOptions{})
			expect(t, "stdout is whole", string(res.Stdout) == alphabet(1<<20), true)
			expect(t, "stderr is whole", string(res.Stderr) == alphabet(1<<20), true)
		}},
		{name: "a stream that is not read does not hold up the other", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("floodboth", strconv.Itoa(4<<20)))
			expect(t, "stdout is whole", s.readAll(t, p.Stdout()) == alphabet(4<<20), true)
			expect(t, "stderr is whole", s.readAll(t, p.Stderr()) == alphabet(4<<20), true)
			expect(t, "status", s.wait(t, p).Success(), true)
		}},
		{name: "a command waits for its reader and memory stays bounded", check: checkBackPressure},
		{name: "a command whose output is not read does not hold up others", check: func(t testingT, s *sandbox) {
			for range 4 {
				s.start(t, t.Context(), s.command("flood", strconv.Itoa(64<<20)))
			}
			expect(t, "output", len(s.probed(t, "flood", strconv.Itoa(1<<20))), 1<<20)
		}},
		{name: "what was printed before the exit can be read after Wait", check: func(t testingT, s *sandbox) {
			// Linux gives new pipes 64 KiB, but 4 or 8 KiB once their user's pipes hold 64 MiB; see pipe(7).
			p := s.start(t, t.Context(), s.command("flood", "4096", "flooderr", "4000"))
			expect(t, "status", s.wait(t, p).Success(), true)
			expect(t, "stdout", s.readAll(t, p.Stdout()) == alphabet(4096), true)
			expect(t, "stderr", s.readAll(t, p.Stderr()) == alphabet(4000), true)
		}},
		{name: "the tail of the output is never lost", check: func(t testingT, s *sandbox) {
			for i := range 20 {
				got := s.probed(t, "flood", "70000", "out", "tail")
				if !strings.HasSuffix(got, "tail") || len(got) != 70004 {
					t.Fatalf("run %d: %d bytes, want 70004 that end with the tail", i, len(got))
				}
			}
		}},
		{name: "Wait does not wait for those who hold the streams", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("spawn", "plain", "mark", s.token, "await", "go", "out", "late\n", "end", "out", "early\n"))
			expect(t, "status", s.wait(t, p), primitives.ExitStatus{Reason: primitives.ReasonExited})
			s.expectLines(t, p.Stdout(), "early", 1)
			s.probed(t, "write", "go", "")
			expect(t, "output after the exit", s.readAll(t, p.Stdout()), "late\n")
		}},
		{name: "Run does not wait for the background", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("spawn", "plain", "mark", s.token, "hang", "end", "out", "done"), primitives.RunOptions{})
			expect(t, "output", string(res.Stdout), "done")
			expect(t, "status", res.Status, primitives.ExitStatus{Reason: primitives.ReasonExited})
			s.probed(t, "kill", "KILL", s.token)
		}},
		{name: "closing a reader early breaks the writer's pipe", check: checkBrokenPipe},
		{name: "closing one reader leaves the other stream alone", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("flooderr", "200000"))
			if err := p.Stdout().Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			expect(t, "stderr is whole", s.readAll(t, p.Stderr()) == alphabet(200000), true)
			expect(t, "status", s.wait(t, p).Success(), true)
		}},
		{name: "closing a process ends a blocked reader", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("out", "ready\n", "hang"))
			s.expectLines(t, p.Stdout(), "ready", 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, p.Stdout()) // any error will do
			}()
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			s.within(t, "the reader to come back", func() error { <-done; return nil })
		}},
	}
}

// checkBackPressure reads a little of an endless output, keeps the sandbox busy with other
// work, and checks how much the writer could write meanwhile.
func checkBackPressure(t testingT, s *sandbox) {
	const total, slack = 96 << 20, 24
	p := s.start(t, t.Context(), s.command("floodlog", strconv.Itoa(total), "progress"))
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 1<<20)); err != nil {
		t.Fatalf("read: %v", err)
	}
	// The other command prints as many bytes as the writer wants to write.
	var others int64
	for range 4 {
		res := s.run(t, s.command("flood", strconv.Itoa(total/4)), primitives.RunOptions{MaxOutput: 1})
		others += res.StdoutDropped + 1
	}
	if size := s.stat(t, "progress").Size; size > slack {
		t.Errorf("%d MiB were accepted while only 1 MiB was read", size)
	}
	expect(t, "output of the other commands", others, int64(total))
	expect(t, "rest", s.discard(t, "the output", p.Stdout()), int64(total-1<<20))
	expect(t, "status", s.wait(t, p).Success(), true)
}

func checkBrokenPipe(t testingT, s *sandbox) {
	p := s.start(t, t.Context(), s.command("flood", strconv.Itoa(96<<20)))
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 10)); err != nil {
		t.Fatalf("read: %v", err)
	}
	if err := p.Stdout().Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	status := s.wait(t, p)
	expect(t, "signal", status.Signal, primitives.Signal("PIPE"))
	expect(t, "reason", status.Reason, primitives.ReasonSignaled)
}

// inputRules returns the rules about standard input.
func inputRules() []rule {
	echoes := func(input string) func(t testingT, s *sandbox) {
		return func(t testingT, s *sandbox) {
			res := s.run(t, s.command("cat"), primitives.RunOptions{Stdin: strings.NewReader(input)})
			expect(t, "output", string(res.Stdout), input)
			expect(t, "status", res.Status.Success(), true)
		}
	}
	return []rule{
		{name: "standard input arrives as it is", check: echoes("hello\nworld\n")},
		{name: "shell syntax on standard input arrives as it is", check: echoes("$HOME `whoami` 'single' \"double\" \\backslash")},
		{name: "bytes that are no text arrive on standard input", check: echoes("\xc3\x28\x00\xff\x01\x02\x04\x1a\r\n")},
		{name: "an empty standard input ends at once", check: echoes("")},
		{name: "without standard input a command reads its end at once", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "", "count")
		}},
		{name: "fifty mebibytes of standard input arrive whole", check: func(t testingT, s *sandbox) {
			input := alphabet(50 << 20)
			res := s.run(t, s.command("count"), primitives.RunOptions{Stdin: strings.NewReader(input)})
			expect(t, "sum", string(res.Stdout), fmt.Sprintf("%d %s", len(input), sum(input)))
		}},
		{name: "closing standard input ends it and leaves the output open", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("cat", "out", "after", "exit", "5")))
			if _, err := io.WriteString(p.Stdin(), "before "); err != nil {
				t.Fatalf("write: %v", err)
			}
			if err := p.Stdin().Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			expect(t, "output", s.readAll(t, p.Stdout()), "before after")
			expect(t, "code", s.wait(t, p).Code, 5)
		}},
		{name: "input and output take turns", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("line", "line", "line")))
			for _, line := range []string{"one", "two", "three"} {
				if _, err := io.WriteString(p.Stdin(), line+"\n"); err != nil {
					t.Fatalf("write: %v", err)
				}
				s.expectLines(t, p.Stdout(), strconv.Quote(line), 1)
			}
			expect(t, "status", s.wait(t, p).Success(), true)
		}},
	}
}

// unreadRules returns the rules about input that no command reads.
func unreadRules() []rule {
	return []rule{
		{name: "writing to a command that has exited is an error", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("exit", "4")))
			expect(t, "code", s.wait(t, p).Code, 4)
			s.expectBrokenInput(t, p)
		}},
		{name: "writing to a command that closed its input is an error", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("closein", "out", "ready\n", "hang")))
			s.expectLines(t, p.Stdout(), "ready", 1)
			s.expectBrokenInput(t, p)
		}},
		{name: "without standard input every write fails", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("hang"))
			if _, err := p.Stdin().Write([]byte("x")); err == nil {
				t.Errorf("write: no error")
			}
		}},
		{name: "Run with input for a command that reads none ends well", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("exit", "3"), primitives.RunOptions{Stdin: strings.NewReader(alphabet(1 << 20))})
			expect(t, "status", res.Status, primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited})
		}},
		{name: "a write to a command that does not read ends with the command", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("out", "ready\n", "hang")))
			s.expectLines(t, p.Stdout(), "ready", 1)
			done := make(chan error, 1)
			go func() { _, err := io.WriteString(p.Stdin(), alphabet(64<<20)); done <- err }()
			if err := p.Signal(t.Context(), primitives.SIGKILL); err != nil {
				t.Fatalf("Signal: %v", err)
			}
			s.within(t, "the write to fail", func() error {
				if err := <-done; err == nil {
					return errors.New("no error")
				}
				return nil
			})
		}},
		{name: "input can be closed when no more fits into it, and ends behind what fitted", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("await", "go", "count")))
			input := s.closeFull(t, p, alphabet(4096))
			s.write(t, "go", "")
			expect(t, "sum", s.readAll(t, p.Stdout()), fmt.Sprintf("%d %s", len(input), sum(input)))
		}},
	}
}

// closeFull writes pieces to a command that does not read, until no more fits. It closes the
// input while a write waits, and returns the bytes that the writes reported as written.
func (s *sandbox) closeFull(t testingT, p primitives.Process, piece string) (written string) {
	t.Helper()
	var total atomic.Int64
	full := make(chan error, 1)
	s.suite.strays.Go(func() {
		for {
			n, err := io.WriteString(p.Stdin(), piece)
			if total.Add(int64(n)); err != nil {
				full <- err
				return
			}
		}
	})
	before, since := int64(0), time.Now()
	eventually(t, s.suite.patience, func() error {
		if now := total.Load(); now == 0 || now != before {
			before, since = now, time.Now()
		}
		if calm := time.Since(since); calm < s.suite.calm {
			return fmt.Errorf("after %d bytes more still fit", before)
		}
		return nil // the write waits
	})
	s.within(t, "closing the input", func() error {
		return p.Stdin().Close()
	})
	s.within(t, "the write that waited", func() error {
		if err := <-full; !errors.Is(err, fs.ErrClosed) {
			return fmt.Errorf("want fs.ErrClosed in the chain of %w", err)
		}
		return nil
	})
	n := int(total.Load())
	return strings.Repeat(piece, n/len(piece)+1)[:n]
}

// expectBrokenInput writes until a write fails.
func (s *sandbox) expectBrokenInput(t testingT, p primitives.Process) {
	t.Helper()
	s.within(t, "an error of the write", func() error {
		// Over a network the first writes may be in transit already.
		block := alphabet(4096)
		for accepted := 0; t.Context().Err() == nil; accepted += len(block) {
			if accepted > 96<<20 {
				return errors.New("96 MiB were accepted")
			}
			if _, err := io.WriteString(p.Stdin(), block); err != nil {
				return nil // the case wants this error
			}
		}
		return errors.New("the case has ended")
	})
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func hexOf(s string) string { return hex.EncodeToString([]byte(s)) }
