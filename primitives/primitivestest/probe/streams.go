package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// streamWords are about arguments, environment and the three streams.
func streamWords() map[string]step {
	return map[string]step{
		// out, err: print the operand. outhex: print bytes given in hex.
		"out": {1, func(_ *script, a []string) error { return write(os.Stdout, []byte(a[0])) }},
		"err": {1, func(_ *script, a []string) error { return write(os.Stderr, []byte(a[0])) }},
		"outhex": {1, func(_ *script, a []string) error {
			b, err := hex.DecodeString(a[0])
			return errors.Join(err, write(os.Stdout, b))
		}},
		"errhex": {1, func(_ *script, a []string) error {
			b, err := hex.DecodeString(a[0])
			return errors.Join(err, write(os.Stderr, b))
		}},
		// args: print all following words as a JSON list of hex strings.
		"args": {0, func(s *script, _ []string) error {
			rest := s.words
			s.words = nil
			return printHexList(rest)
		}},
		// argsum: print count, total length and SHA-256 of the following words.
		"argsum": {0, func(s *script, _ []string) error {
			sum, total := sha256.New(), 0
			for _, w := range s.words {
				total += len(w)
				sum.Write([]byte(w))
			}
			fmt.Fprintf(os.Stdout, "%d %d %x", len(s.words), total, sum.Sum(nil))
			s.words = nil
			return nil
		}},
		"env": {0, func(*script, []string) error { return printHexList(os.Environ()) }},
		"cwd": {0, func(*script, []string) error {
			dir, err := os.Getwd()
			return errors.Join(err, write(os.Stdout, []byte(dir)))
		}},
		// cat: copy standard input to standard output until it ends.
		"cat": {0, func(*script, []string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err }},
		// count: read standard input to its end, and print its length and SHA-256.
		"count": {0, func(*script, []string) error {
			sum := sha256.New()
			n, err := io.Copy(sum, os.Stdin)
			fmt.Fprintf(os.Stdout, "%d %x", n, sum.Sum(nil))
			return err
		}},
		// line: read one line and print it in quotes.
		"line": {0, func(*script, []string) error {
			line, err := readLine()
			if err != nil {
				line += "<" + err.Error() + ">"
			}
			return write(os.Stdout, []byte(strconv.Quote(line)+"\n"))
		}},
		"closein":  {0, func(*script, []string) error { return os.Stdin.Close() }},
		"closeout": {0, func(*script, []string) error { return errors.Join(os.Stdout.Close(), os.Stderr.Close()) }},
		// flood N: print N bytes. flooderr: print them on standard error.
		"flood":    {1, func(_ *script, a []string) error { return flood(os.Stdout, a[0], nil) }},
		"flooderr": {1, func(_ *script, a []string) error { return flood(os.Stderr, a[0], nil) }},
		// floodboth N: print N bytes on each output at the same time, and close each when done.
		"floodboth": {1, func(_ *script, a []string) error { return floodBoth(a[0]) }},
		// floodlog N FILE: like flood. The size of FILE, in bytes, is the number of MiB that
		// were accepted.
		"floodlog": {2, func(_ *script, a []string) error {
			f, err := os.OpenFile(a[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			return errors.Join(flood(os.Stdout, a[0], f), f.Close())
		}},
		// pause MS: wait this many milliseconds.
		"pause": {1, func(_ *script, a []string) error {
			ms, err := strconv.Atoi(a[0])
			<-time.After(time.Duration(ms) * time.Millisecond)
			return err
		}},
	}
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

func printHexList(list []string) error {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = hex.EncodeToString([]byte(s))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// readLine reads byte by byte, so that the next word can read the data after the line.
func readLine() (string, error) {
	var line []byte
	var b [1]byte
	for {
		n, err := os.Stdin.Read(b[:])
		if n == 1 && b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[:n]...)
		if err != nil {
			return string(line), err
		}
	}
}

// flood prints size bytes of the alphabet, and writes a byte to progress for every MiB that was
// accepted.
func flood(w io.Writer, size string, progress io.Writer) error {
	left, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = 'a' + byte(i%26)
	}
	for done := int64(0); left > 0; {
		n, err := w.Write(block[:min(left, int64(len(block)))])
		if err != nil {
			return err
		}
		left -= int64(n)
		before := done >> 20
		done += int64(n)
		if progress != nil && done>>20 > before {
			if err := write(progress, []byte{'.'}); err != nil {
				return err
			}
		}
	}
	return nil
}

func floodBoth(size string) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, f := range []*os.File{os.Stdout, os.Stderr} {
		wg.Go(func() { errs[i] = errors.Join(flood(f, size, nil), f.Close()) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
