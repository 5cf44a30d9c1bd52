//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agentenv-dev/agentenv/primitives"
)

// apiExec runs a command in a container with the engine's client, until its exit status.
func (e *engine) apiExec(ctx context.Context, id string, out io.Writer, args ...string) error {
	made, err := e.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: args, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	conn, err := e.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := stdcopy.StdCopy(out, io.Discard, conn.Reader); err != nil {
		return err
	}
	status, err := e.ContainerExecInspect(ctx, made.ID)
	if err == nil && status.ExitCode != 0 {
		err = fmt.Errorf("%q ended with %d", args, status.ExitCode)
	}
	return err
}

// command runs the docker command.
func (e *engine) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"--host", e.DaemonHost()}, args...)...)
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		err = missing{fmt.Errorf("install the docker command, with which this is compared: %w", err)}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, exit.Stderr)
	}
	return string(out), err
}

// benchDockerExec compares single commands with the usual ways to run them, then 32 at once.
func benchDockerExec(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		id, err := e.create(ctx)
		if err != nil {
			return err
		}
		return e.withBoxes(ctx, nil, func(boxes []box) error {
			one, err := e.execOne(ctx, id, boxes)
			if err != nil {
				return err
			}
			many, err := e.execMany(ctx, id, boxes)
			rows = append(one, many...)
			return err
		})
	})
	return rows, err
}

func (e *engine) execOne(ctx context.Context, id string, boxes []box) (rows []row, err error) {
	all := []contestant{
		clocked(1, func() error {
			_, err := e.command(ctx, "exec", id, "/bin/true")
			return err
		}),
		clocked(1, func() error { return e.apiExec(ctx, id, io.Discard, "/bin/true") }),
		clocked(20, func() error { return osExecTrueOutput(ctx) }),
	}
	for _, b := range boxes {
		all = append(all, clocked(20, func() error { return runTrue(ctx, b) }))
	}
	shell, err := e.startShell(ctx, id)
	if err != nil {
		return nil, err
	}
	defer shell.Close()
	all = append(all, clocked(20, shell.runTrue))
	loop, err := e.startLoop(ctx, id)
	if err != nil {
		return nil, err
	}
	defer loop.Close()
	all = append(all, clocked(20, loop.runTrue))
	took, err := compete(30, all...)
	if err != nil {
		return nil, err
	}
	rows = append(rows, execRows("docker exec by a shell over stdio, p50", took, len(boxes)+3, 1.6)...)
	rows = append(rows, execRows("docker exec by os/exec over stdio, p50", took, len(boxes)+4, 1.6)...)
	for i, b := range boxes {
		rows = append(rows, execRows("docker exec over "+b.name+", p50", took, 3+i, b.pick(1.6, 1.35))...)
	}
	return rows, nil
}

// execRows compares one way of running a command with the usual ways.
func execRows(name string, took [][]time.Duration, i int, local float64) []row {
	ours := mid(took[i])
	return []row{
		speedupRow(name, "docker exec command", mid(took[0]), ours, 50),
		speedupRow(name, "client API", mid(took[1]), ours, 35),
		ratioRow(name, "local os/exec", "us", lower, micros(mid(took[2])), micros(ours), local),
	}
}

// shell is a program in a container that runs a command for each line of its input. Nothing that
// talks to a container through the engine's streams can do much less.
type shell struct{ types.HijackedResponse }

func (e *engine) startShell(ctx context.Context, id string) (shell, error) {
	return e.attached(ctx, id, "sh", "-c", "while read -r line; do /bin/true; echo; done")
}

// startLoop is startShell with this program instead of the shell.
func (e *engine) startLoop(ctx context.Context, id string) (shell, error) {
	if err := e.copySelf(ctx, id); err != nil {
		return shell{}, err
	}
	return e.attached(ctx, id, selfInside, "loop")
}

// loop works like a shell that runs a command for each line.
func loop(ctx context.Context) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := osExecTrueOutput(ctx); err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString("\n"); err != nil {
			return err
		}
	}
	return lines.Err()
}

// selfInside is the path in the container to which copySelf copies this program.
const selfInside = "/tmp/bench"

func (e *engine) copySelf(ctx context.Context, id string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	archive, err := packed([]primitives.File{{Path: path.Base(selfInside), Content: content, Mode: 0o755}})
	if err != nil {
		return err
	}
	return e.CopyToContainer(ctx, id, path.Dir(selfInside), archive, container.CopyToContainerOptions{})
}

// attached runs a program whose standard input and output are a stream of the engine.
func (e *engine) attached(ctx context.Context, id string, args ...string) (shell, error) {
	made, err := e.ContainerExecCreate(ctx, id, container.ExecOptions{AttachStdin: true, AttachStdout: true, Cmd: args})
	if err != nil {
		return shell{}, err
	}
	conn, err := e.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	return shell{conn}, err
}

// runTrue waits for the empty line that marks the end of the command.
func (s shell) runTrue() error {
	if _, err := io.WriteString(s.Conn, "\n"); err != nil {
		return err
	}
	n, err := io.CopyN(io.Discard, s.Reader, stdcopyHeader+1)
	if err != nil {
		return fmt.Errorf("the shell said %d bytes: %w", n, err)
	}
	return nil
}

// stdcopyHeader is the length of the header of each frame in an engine's stream.
const stdcopyHeader = 8

func (e *engine) execMany(ctx context.Context, id string, boxes []box) (rows []row, err error) {
	const at, few, total = 32, 64, 960
	all := []contestant{clocked(1, func() error {
		return parallel(few, at, func() error { return e.apiExec(ctx, id, io.Discard, "/bin/true") })
	})}
	for _, b := range boxes {
		all = append(all, clocked(1, func() error { return parallel(total, at, func() error { return runTrue(ctx, b) }) }))
	}
	took, err := compete(2, all...)
	if err != nil {
		return nil, err
	}
	for i, b := range boxes {
		rows = append(rows, ratioRow("docker exec rate at 32 over "+b.name, "client API", "1/s", higher,
			rate(few, took[0][0]), rate(total, took[1+i][0]), 80))
	}
	return rows, nil
}

// dockerStreamSize is how many bytes a stream from a container moves.
const dockerStreamSize = 512 << 20

// benchDockerStream compares reading the output of a command with the engine's attached stream,
// with that stream through one more process, as a guest is, and with a pipe.
func benchDockerStream(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		id, err := e.create(ctx)
		if err != nil {
			return err
		}
		return e.withBoxes(ctx, nil, func(boxes []box) error {
			all := []contestant{
				{1, func() (time.Duration, error) {
					w := &counter{}
					err := e.apiExec(ctx, id, w, flood(dockerStreamSize)...)
					return w.took(dockerStreamSize, err)
				}},
				clocked(1, func() error { return rawPipe(ctx, dockerStreamSize, 1<<20) }),
				{1, func() (time.Duration, error) {
					w := &counter{}
					err := e.apiExec(ctx, id, w, "sh", "-c", strings.Join(flood(dockerStreamSize), " ")+" | cat")
					return w.took(dockerStreamSize, err)
				}},
			}
			for _, b := range boxes {
				all = append(all, clocked(1, func() error { return readStream(ctx, b, dockerStreamSize) }))
			}
			took, err := compete(engineRounds, all...)
			if err != nil {
				return err
			}
			const mb = dockerStreamSize / 1e6
			rows = append(rows, ratioRow("docker stream through cat", "API attach with stdcopy", "MB/s", higher,
				rate(mb, mid(took[0])), rate(mb, mid(took[2])), 1))
			for i, b := range boxes {
				name, ours := "docker stream over "+b.name, rate(mb, mid(took[3+i]))
				rows = append(rows, ratioRow(name, "API attach with stdcopy", "MB/s", higher, rate(mb, mid(took[0])), ours, b.pick(1, 7)))
				if b.socket {
					rows = append(rows, ratioRow(name, "raw local pipe of 1 MiB", "MB/s", higher, rate(mb, mid(took[1])), ours, 0.9))
				}
			}
			return nil
		})
	})
	return rows, err
}

// counter counts the bytes written, and the time since the first one.
type counter struct {
	first time.Time
	n     int64
}

func (c *counter) Write(p []byte) (int, error) {
	if c.n == 0 {
		c.first = time.Now()
	}
	c.n += int64(len(p))
	return len(p), nil
}

// took returns the time since the first byte, which excludes the start of the command.
func (c *counter) took(want int64, err error) (time.Duration, error) {
	if err == nil && c.n != want {
		err = fmt.Errorf("%d bytes of %d arrived", c.n, want)
	}
	return time.Since(c.first), err
}
