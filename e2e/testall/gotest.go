package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// runner runs go test and collects what it says.
type runner struct {
	self      string // this program
	root      string // of the module
	envrunner string // the runner that all tests use
	dir       string // for reports of test programs
	temp      string // for their temporary files
	inMemory  bool   // temp is a file system of its own
	env       []string
	out       io.Writer

	done []*result
	sum  struct{ passed, failed, skipped int }
}

// result is one run of the tests of a package.
type result struct {
	path   string
	failed bool
	passed int // tests, with those inside of tests
	wall   time.Duration
	output map[string][]byte // by test that has not passed; "" is the package's own
	broken []string          // the tests that failed
}

// event is what go test -json prints, see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// test runs go test with arguments. It prints a line for each package, and all that failed tests
// printed.
func (r *runner) test(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json", "-exec='" + r.self + "' " + wrapVerb + " '" + r.root + "'"}, args)...)
	cmd.Env, cmd.Stderr = r.env, os.Stderr
	inGroup(cmd) // an interrupt must reach the test programs, too
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	readErr := r.read(bufio.NewReader(out))
	_, _ = io.Copy(io.Discard, out) // whatever is left, so that the command can end
	err = cmd.Wait()
	killGroup(cmd)
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return readErr
}

// read reads the events of go test.
func (r *runner) read(lines *bufio.Reader) error {
	running := map[string]*result{}
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var ev event
			if json.Unmarshal(line, &ev) != nil { // go test itself
				_, _ = r.out.Write(line)
			} else {
				r.event(running, ev)
			}
		}
		if err == nil {
			continue
		}
		for _, p := range running { // go test itself has ended early
			p.failed = true
			r.add(p)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// add records and prints a result.
func (r *runner) add(p *result) {
	p.print(r.out)
	r.done = append(r.done, p)
}

func (r *runner) event(running map[string]*result, ev event) {
	if ev.Action == "build-output" {
		fmt.Fprint(r.out, ev.Output)
	}
	if ev.Package == "" {
		return
	}
	p := running[ev.Package]
	if p == nil {
		p = &result{path: ev.Package, output: map[string][]byte{}}
		running[ev.Package] = p
	}
	switch ev.Action {
	case "output":
		p.output[ev.Test] = append(p.output[ev.Test], ev.Output...)
	case "pass", "fail", "skip":
		if ev.Test == "" {
			p.wall, p.failed = time.Duration(ev.Elapsed*float64(time.Second)), ev.Action == "fail"
			r.add(p)
			delete(running, ev.Package)
			return
		}
		switch ev.Action {
		case "pass":
			r.sum.passed++
			p.passed++
			delete(p.output, ev.Test)
		case "skip":
			r.sum.skipped++
			delete(p.output, ev.Test)
		case "fail":
			r.sum.failed++
			p.broken = append(p.broken, ev.Test)
		}
	}
}

// print prints the line of a package, and the output of its failed and unfinished tests.
func (p *result) print(w io.Writer) {
	if p.failed {
		for _, test := range slices.Sorted(maps.Keys(p.output)) { // the package's own output first
			_, _ = w.Write(p.output[test])
		}
		return
	}
	for line := range strings.Lines(string(p.output[""])) {
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "?") {
			fmt.Fprint(w, line)
		}
	}
}
