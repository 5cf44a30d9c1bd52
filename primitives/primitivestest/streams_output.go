package primitivestest

import (
	"encoding/hex"
	"io"
	"strconv"
	"strings"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
)

// outputRules returns the rules that the caller reads exactly what a command prints.
func outputRules() []rule {
	return concat(exactRules(), boundRules())
}

// expectOutput runs the probe and compares its output.
func (s *sandbox) expectOutput(t testingT, stdout, stderr string, words ...string) {
	t.Helper()
	res := s.run(t, s.command(words...), primitives.RunOptions{})
	expect(t, "stdout", string(res.Stdout), stdout)
	expect(t, "stderr", string(res.Stderr), stderr)
	expect(t, "status", res.Status, primitives.ExitStatus{Reason: primitives.ReasonExited})
}

func exactRules() []rule { return concat(byteRules(), readerRules()) }

func byteRules() []rule {
	return []rule{
		{name: "standard output arrives exactly", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "foo\nbar\n", "", "out", "foo\n", "out", "bar\n")
		}},
		{name: "standard error arrives apart from standard output", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "boof\n", "baz\n", "out", "boof\n", "err", "baz\n")
		}},
		{name: "no newline is added at the end", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "no end", "nor here", "out", "no end", "err", "nor here")
		}},
		{name: "blanks and newlines around the output are kept", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, " \n\n x \n\n", "\n ", "out", " \n\n x \n\n", "err", "\n ")
		}},
		{name: "carriage returns are kept", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "a\r\nb\rc\n\r", "", "out", "a\r\nb\rc\n\r")
		}},
		{name: "escape sequences are kept", check: func(t testingT, s *sandbox) {
			s.expectOutput(t, "\x1b[31mred\x1b[0m\x07\x08", "", "out", "\x1b[31mred\x1b[0m\x07\x08")
		}},
		{name: "UTF-8 made inside arrives on standard output", check: func(t testingT, s *sandbox) {
			const text = "café résumé €100 中文 😀"
			s.expectOutput(t, text, "", "outhex", hex.EncodeToString([]byte(text)))
		}},
		{name: "UTF-8 made inside arrives on standard error", check: func(t testingT, s *sandbox) {
			const text = "café résumé €100 中文 😀"
			s.expectOutput(t, "", text, "errhex", hex.EncodeToString([]byte(text)))
		}},
		{name: "every byte value arrives", check: func(t testingT, s *sandbox) {
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			s.expectOutput(t, string(all), string(all), "outhex", hex.EncodeToString(all), "errhex", hex.EncodeToString(all))
		}},
	}
}

func readerRules() []rule {
	return []rule{
		{name: "a rune written in two parts arrives whole", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("outhex", "f09f", "line", "outhex", "9880")))
			got := make([]byte, 2)
			s.within(t, "the first half of the rune", func() error {
				_, err := io.ReadFull(p.Stdout(), got)
				return err
			})
			if _, err := p.Stdin().Write([]byte("\n")); err != nil {
				t.Fatalf("write: %v", err)
			}
			expect(t, "output", string(got)+s.readAll(t, p.Stdout()), "\xf0\x9f\"\"\n\x98\x80")
		}},
		{name: "a command that prints nothing ends its streams", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command())
			expect(t, "stdout", s.readAll(t, p.Stdout()), "")
			expect(t, "stderr", s.readAll(t, p.Stderr()), "")
		}},
		{name: "merged output is in the order of writing", check: func(t testingT, s *sandbox) {
			var words []string
			var want strings.Builder
			for i := range 50 {
				o, e := "o"+strconv.Itoa(i)+" ", "e"+strconv.Itoa(i)+" "
				words = append(words, "out", o, "err", e)
				want.WriteString(o + e)
			}
			cmd := s.command(words...)
			cmd.MergeStderr = true
			res := s.run(t, cmd, primitives.RunOptions{})
			expect(t, "stdout", string(res.Stdout), want.String())
			expect(t, "stderr", string(res.Stderr), "")
		}},
		{name: "output can be read while the command runs", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), withInput(s.command("out", "first\n", "line", "out", "second\n")))
			s.expectLines(t, p.Stdout(), "first", 1)
			if err := p.Stdin().Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			s.expectLines(t, p.Stdout(), "second", 1)
		}},
		{name: "the output of two commands is not mixed", check: func(t testingT, s *sandbox) {
			a := s.start(t, t.Context(), s.command("out", "a", "flood", "300000"))
			b := s.start(t, t.Context(), s.command("out", "b", "flood", "300000"))
			outB, outA := s.readAll(t, b.Stdout()), s.readAll(t, a.Stdout())
			expect(t, "a", outA == "a"+alphabet(300000), true)
			expect(t, "b", outB == "b"+alphabet(300000), true)
		}},
		{name: "a stream is a well-behaved reader", check: func(t testingT, s *sandbox) {
			p := s.start(t, t.Context(), s.command("flood", "100000"))
			if err := iotest.TestReader(onlyReader{p.Stdout()}, []byte(alphabet(100000))); err != nil {
				t.Errorf("stdout: %v", err)
			}
		}},
	}
}

// onlyReader hides all other methods of a reader.
type onlyReader struct{ io.Reader }

// alphabet returns the first n bytes that flood prints.
func alphabet(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	block := strings.Repeat(letters, 64<<10/len(letters)+1)[:64<<10]
	return strings.Repeat(block, n/len(block)+1)[:n]
}

// boundRules returns the rules about how much output Run keeps.
func boundRules() []rule {
	return []rule{
		{name: "ten mebibytes without a newline arrive whole", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("flood", strconv.Itoa(10<<20)), primitives.RunOptions{})
			expect(t, "output is whole", string(res.Stdout) == alphabet(10<<20), true)
			expect(t, "truncated", res.Truncated(), false)
		}},
		{name: "Run keeps ten mebibytes unless told otherwise", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("flood", strconv.Itoa(10<<20+5)), primitives.RunOptions{})
			expect(t, "kept", len(res.Stdout), primitives.DefaultMaxOutput)
			expect(t, "dropped", res.StdoutDropped, int64(5))
		}},
		{name: "Run keeps the beginning of each stream and counts the rest", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("flood", "5000", "flooderr", "300000"), primitives.RunOptions{MaxOutput: 1000})
			expect(t, "stdout", string(res.Stdout), alphabet(1000))
			expect(t, "stderr", string(res.Stderr), alphabet(1000))
			expect(t, "stdout dropped", res.StdoutDropped, int64(4000))
			expect(t, "stderr dropped", res.StderrDropped, int64(299000))
			expect(t, "truncated", res.Truncated(), true)
			expect(t, "status", res.Status.Success(), true)
		}},
		{name: "output that just fits is not truncated", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("flood", "1000"), primitives.RunOptions{MaxOutput: 1000})
			expect(t, "stdout", len(res.Stdout), 1000)
			expect(t, "truncated", res.Truncated(), false)
		}},
		{name: "a limit on one stream leaves the other alone", check: func(t testingT, s *sandbox) {
			res := s.run(t, s.command("flood", "2000", "err", "short"), primitives.RunOptions{MaxOutput: 100})
			expect(t, "stderr", string(res.Stderr), "short")
			expect(t, "dropped", res.StderrDropped, int64(0))
		}},
	}
}
