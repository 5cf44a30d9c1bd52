package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// sessionCount is how many sandboxes are alive at once, each with a process that waits for
// input.
const sessionCount = 1000

// figures are one program's measurements of its sessions.
type figures struct {
	Start   time.Duration // until all run
	Reply   time.Duration // until all have answered a line
	Stop    time.Duration // until all have ended
	Threads int           // of the program while all wait
	Memory  float64       // MiB: what its resident memory grew by
}

// echo is one waiting process.
type echo struct {
	in   io.Writer
	out  *bufio.Reader
	stop func() error
}

// benchSessions measures in separate programs, so that threads and memory are those of the
// sessions alone.
func benchSessions(ctx context.Context) ([]row, error) {
	var f [4]figures
	for i, kind := range []string{"os/exec", "local", "folders", "sandboxes"} {
		var err error
		if f[i], err = measureSessions(ctx, kind); err != nil {
			return nil, err
		}
	}
	base, ours, folders, sandboxes := f[0], f[1], f[2], f[3]
	with := func(name, unit string, b, o, target float64) row {
		r := limitRow(name, unit, lower, o, target)
		r.Base, r.BaseV = "1000 os/exec processes", b
		if b != 0 {
			r.Ratio = o / b
		}
		return r
	}
	const made = "os/exec and the same folders by hand"
	return []row{
		with("1000 local sessions, start", "s", base.Start.Seconds(), ours.Start.Seconds(), 0.5),
		with("1000 local sessions, all reply", "ms", millis(base.Reply), millis(ours.Reply), 15),
		with("1000 local sessions, stop", "ms", millis(base.Stop), millis(ours.Stop), 80),
		with("1000 local sessions, threads", "", float64(base.Threads), float64(ours.Threads), 16),
		with("1000 local sessions, memory", "MiB", base.Memory, ours.Memory, 16),
		ratioRow("1000 local sandboxes, start", made, "s", lower, folders.Start.Seconds(), sandboxes.Start.Seconds(), 1.1),
		ratioRow("1000 local sandboxes, stop", made, "s", lower, folders.Stop.Seconds(), sandboxes.Stop.Seconds(), 1.1),
		with("1000 local sandboxes, threads", "", float64(folders.Threads), float64(sandboxes.Threads), 16),
		with("1000 local sandboxes, memory", "MiB", folders.Memory, sandboxes.Memory, 16),
	}, nil
}

func measureSessions(ctx context.Context, kind string) (figures, error) {
	self, err := os.Executable()
	if err != nil {
		return figures{}, err
	}
	var f figures
	out, err := exec.CommandContext(ctx, self, "sessions", kind).Output()
	if err != nil {
		return f, fmt.Errorf("sessions %s: %w", kind, err)
	}
	return f, json.Unmarshal(out, &f)
}

// child runs what this program does when it calls itself.
func child(ctx context.Context, args []string) (code int, ok bool) {
	var err error
	switch {
	case len(args) == 3 && args[1] == "sessions":
		var f figures
		if f, err = runSessions(ctx, args[2]); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(f)
		}
	case len(args) == 2 && args[1] == "loop":
		err = loop(ctx)
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1, true
	}
	return 0, true
}

func runSessions(ctx context.Context, kind string) (f figures, err error) {
	starts := map[string]startFunc{"os/exec": startOS, "folders": startFolders, "sandboxes": startSandbox}
	if kind == "local" {
		p, err := local.New(ctx, local.Config{})
		if err != nil {
			return f, err
		}
		defer func() {
			_, terr := p.Terminate(ctx)
			err = errors.Join(err, terr, p.Close())
		}()
		starts[kind] = func(ctx context.Context) (*echo, error) { return startIn(ctx, p, func() error { return nil }) }
	}
	before := residentMiB()
	began := time.Now()
	sessions, err := startAll(ctx, starts[kind])
	f.Start = time.Since(began)
	if err == nil {
		began = time.Now()
		err = replyAll(sessions)
		f.Reply = time.Since(began)
		f.Threads = statusNumber("Threads:")
		f.Memory = residentMiB() - before
	}
	began = time.Now()
	err = errors.Join(err, stopAll(sessions))
	f.Stop = time.Since(began)
	return f, err
}

// startFunc starts one session.
type startFunc func(context.Context) (*echo, error)

// startAll starts the sessions from several goroutines.
func startAll(ctx context.Context, start startFunc) ([]*echo, error) {
	all := make([]*echo, sessionCount)
	errs := make([]error, sessionCount)
	var next sync.Mutex
	i := 0
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				next.Lock()
				k := i
				i++
				next.Unlock()
				if k >= sessionCount {
					return
				}
				all[k], errs[k] = start(ctx)
			}
		})
	}
	workers.Wait()
	return all, errors.Join(errs...)
}

func replyAll(sessions []*echo) error {
	for _, s := range sessions {
		if _, err := io.WriteString(s.in, "ping\n"); err != nil {
			return err
		}
	}
	for _, s := range sessions {
		if line, err := s.out.ReadString('\n'); err != nil || line != "ping\n" {
			return fmt.Errorf("answer %q, %w", line, err)
		}
	}
	return nil
}

func stopAll(sessions []*echo) error {
	errs := make([]error, len(sessions))
	var stops sync.WaitGroup
	for i, s := range sessions {
		if s != nil {
			stops.Go(func() { errs[i] = s.stop() })
		}
	}
	stops.Wait()
	return errors.Join(errs...)
}

// startSandbox starts the process in a sandbox of its own.
func startSandbox(ctx context.Context) (*echo, error) {
	p, err := local.New(ctx, local.Config{})
	if err != nil {
		return nil, err
	}
	return startIn(ctx, p, func() error {
		_, err := p.Terminate(ctx)
		return errors.Join(err, p.Close())
	})
}

// startIn starts the process in a sandbox.
func startIn(ctx context.Context, p *local.Sandbox, end func() error) (*echo, error) {
	proc, err := p.Exec(ctx, primitives.Command{Args: []string{"/bin/cat"}, Stdin: true, MergeStderr: true, Grace: -1})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &echo{in: proc.Stdin(), out: bufio.NewReaderSize(proc.Stdout(), 16), stop: func() error {
		return errors.Join(proc.Close(), end())
	}}, nil
}

// startFolders creates by hand the folders that a sandbox has on disk, and starts the process.
func startFolders(ctx context.Context) (*echo, error) {
	dir, err := os.MkdirTemp("", "bench-session-*")
	if err != nil {
		return nil, err
	}
	for _, d := range primitives.PathsIn(dir).All()[1:] {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"sandbox.json", "life"} {
		if err := os.WriteFile(filepath.Join(primitives.PathsIn(dir).App, name), []byte("{}"), 0o600); err != nil {
			return nil, err
		}
	}
	e, err := startOS(ctx)
	if err != nil {
		return nil, err
	}
	stop := e.stop
	e.stop = func() error { return errors.Join(stop(), os.RemoveAll(dir)) }
	return e, nil
}

func startOS(ctx context.Context) (*echo, error) {
	cmd := exec.CommandContext(ctx, "/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	return &echo{in: in, out: bufio.NewReaderSize(out, 16), stop: func() error {
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		if err := <-waited; err == nil {
			return errors.New("a killed process reports success")
		}
		return nil
	}}, nil
}

func residentMiB() float64 { return float64(statusNumber("VmRSS:")) / 1024 }

// statusNumber returns a number of /proc/self/status; zero if it is missing.
func statusNumber(key string) int {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), key)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace([]byte(fields[0]))))
	return n
}
