package docker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/primitives"
)

// The shell programs of the plain way. They run in the container, by the image's
// own shell, and keep to what dash, bash and busybox have in common.
var (
	//go:embed plain/first.sh
	firstScript string
	//go:embed plain/paths.sh
	pathsScript string
	//go:embed plain/files.sh
	filesScript string
	//go:embed plain/processes.sh
	processesScript string
	//go:embed plain/control.sh
	controlScript string
	//go:embed plain/start.sh
	startScript string
)

const (
	plainShell = "/bin/sh"
	// controlMark is the first line of every control shell, by which the others
	// and the first process know it.
	controlMark = "# agentenv control shell\n"
)

// shell is a control shell: an exec of the image's shell that does what it is told
// on its standard input, one request after the other. It is not for concurrent use.
type shell struct {
	conn *stream
	r    *bufio.Reader
	tag  string // ends each answer
	user string
	pid  int // in the container
}

// errShellEnded is the end of a control shell in the middle of an answer.
var errShellEnded = errors.New("the shell in the container has ended")

// openShell starts a control shell. One with a handle ends, when its connection
// breaks, every process that has the handle in its environment.
func (p *plain) openShell(ctx context.Context, user, handle string) (_ *shell, err error) {
	script := controlMark + "shell=" + plainShell + " readlink=readlink" +
		" handle=" + shellQuote(handle) + " move_exact=" + strconv.Itoa(p.image.moveExact) + " grep=" + shellQuote(p.image.grep) +
		"\n" + pathsScript + filesScript + processesScript + controlScript
	conn, err := p.attachExec(ctx, container.ExecOptions{
		User: user, AttachStdin: true, AttachStdout: true, AttachStderr: true, WorkingDir: "/",
		Env: []string{"PATH=" + plainPath, "LC_ALL=C", "TZ=UTC0"},
		Cmd: []string{plainShell, "-c", script},
	})
	if err != nil {
		return nil, err
	}
	s := &shell{conn: newStream(conn.HijackedResponse), tag: rand.Text(), user: user}
	s.r = bufio.NewReaderSize(s.conn, 64<<10)
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	if err := s.send(s.tag); err != nil {
		_ = s.conn.Close()
		return nil, err
	}
	greeting, status, err := s.answer(maxAnswer)
	if err == nil {
		s.pid, err = strconv.Atoi(greeting)
	}
	if err != nil || status != 0 {
		_ = s.conn.Close()
		if cerr := ctx.Err(); cerr != nil {
			return nil, cerr
		}
		if tail := s.conn.stderr(); tail != "" {
			err = fmt.Errorf("%w; it wrote: %s", err, tail)
		}
		return nil, err
	}
	return s, nil
}

// plainPath is where control shells look for programs. It is not the sandbox's
// PATH, which may be anything.
const plainPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// attachedExec is a started exec and the connection to its streams.
type attachedExec struct {
	types.HijackedResponse
	id string
}

// attachExec makes and starts an exec.
func (p *plain) attachExec(ctx context.Context, opts container.ExecOptions) (attachedExec, error) {
	made, err := p.eng.ContainerExecCreate(ctx, p.link.container, opts)
	if err != nil {
		return attachedExec{}, err
	}
	conn, err := hijack(ctx, func(ctx context.Context) (types.HijackedResponse, error) {
		return p.eng.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{Tty: opts.Tty, ConsoleSize: opts.ConsoleSize})
	})
	return attachedExec{conn, made.ID}, err
}

// send sends a line.
func (s *shell) send(line string) error {
	_, err := io.WriteString(s.conn, line+"\n")
	return err
}

// maxAnswer bounds what an answer that is kept in memory may have.
const maxAnswer = 256 << 20

// answer reads the answer to a request.
func (s *shell) answer(limit int64) (text string, status int, err error) {
	body := &answerReader{s: s}
	b, err := io.ReadAll(io.LimitReader(body, limit))
	if err == nil && !body.done {
		err = errors.New("the shell in the container does not end its answer")
	}
	return string(b), body.status, err
}

// answerReader reads an answer up to the line with the tag, which has the status.
type answerReader struct {
	s      *shell
	status int
	done   bool
}

func (a *answerReader) Read(b []byte) (int, error) {
	if a.done {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	marker := []byte("\n" + a.s.tag + " ")
	r := a.s.r
	for want := 1; ; {
		if _, err := r.Peek(want); err != nil {
			if errors.Is(err, io.EOF) {
				err = errShellEnded
			}
			return 0, err
		}
		buf, _ := r.Peek(r.Buffered())
		safe := beforeMarker(buf, marker)
		if safe > 0 {
			n := copy(b, buf[:safe])
			_, err := r.Discard(n)
			return n, err
		}
		if len(buf) >= len(marker) { // it begins with it
			return 0, a.end(len(marker))
		}
		want = len(buf) + 1
	}
}

// end reads the status behind the marker.
func (a *answerReader) end(marker int) error {
	if _, err := a.s.r.Discard(marker); err != nil {
		return err
	}
	line, err := a.s.r.ReadSlice('\n')
	if err != nil {
		return errShellEnded
	}
	a.status, err = strconv.Atoi(string(bytes.TrimSpace(line)))
	if err != nil {
		return fmt.Errorf("the shell in the container answers with a bad status: %w", err)
	}
	a.done = true
	return io.EOF
}

// beforeMarker returns how much of buf certainly comes before a marker.
func beforeMarker(buf, marker []byte) int {
	if i := bytes.Index(buf, marker); i >= 0 {
		return i
	}
	for i := max(0, len(buf)-len(marker)+1); i < len(buf); i++ {
		if bytes.HasPrefix(marker, buf[i:]) {
			return i
		}
	}
	return len(buf)
}

// shellWords are a command for a control shell.
func shellWords(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(shellQuote(w))
	}
	return b.String()
}

// shellQuote quotes a word so that it stays on one line, whatever is in it.
func shellQuote(word string) string {
	word = strings.ReplaceAll(word, "'", `'\''`)
	return "'" + strings.ReplaceAll(word, "\n", `'"$nl"'`) + "'"
}

// Shells that nobody uses are kept for the next request, up to this many for each
// user. Starting one takes fifty times as long as a request.
const maxIdleShells = 4

// takeShell returns a control shell of a user for one request.
func (p *plain) takeShell(ctx context.Context, user string) (*shell, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if idle := p.idle[user]; len(idle) > 0 {
		s := idle[len(idle)-1]
		p.idle[user] = idle[:len(idle)-1]
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	s, err := p.openShell(ctx, user, "")
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	return s, nil
}

// giveShell takes a control shell back that has given its answer whole.
func (p *plain) giveShell(s *shell) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[s.user]) >= maxIdleShells {
		_ = s.conn.Close() // the shell ends with its input
		return
	}
	p.idle[s.user] = append(p.idle[s.user], s)
}

// dropShell ends a control shell in the middle of something. What it runs would go
// on, because the engine goes on reading its output.
func (p *plain) dropShell(ctx context.Context, s *shell) {
	_ = s.conn.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fateTimeout)
	p.background.Go(func() {
		defer cancel()
		other, err := p.takeShell(ctx, s.user)
		if err != nil {
			return // then nothing lives there
		}
		if _, _, err := other.do(ctx, "tell", "KILL", strconv.Itoa(s.pid), "no mark"); err != nil {
			_ = other.conn.Close()
			return
		}
		p.giveShell(other)
	})
}

// do has the shell do a request. If ctx ends before the answer has come the shell
// cannot be used any more.
func (s *shell) do(ctx context.Context, words ...string) (text string, status int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	if err = s.send(shellWords(words)); err == nil {
		text, status, err = s.answer(maxAnswer)
	}
	if !stop() {
		return "", 0, ctx.Err()
	}
	return text, status, err
}

// request has a control shell of a user do something and returns what it prints
// and its status.
func (p *plain) request(ctx context.Context, user string, words ...string) (text string, status int, err error) {
	if err := ctx.Err(); err != nil {
		return "", 0, err
	}
	s, err := p.takeShell(ctx, user)
	if err != nil {
		return "", 0, err
	}
	text, status, err = s.do(ctx, words...)
	if err != nil {
		p.breakShell(ctx, s, err)
		return "", 0, p.explain(ctx, err)
	}
	p.giveShell(s)
	return text, status, nil
}

// ask is request for what succeeds with the status 0.
func (p *plain) ask(ctx context.Context, user string, words ...string) (string, error) {
	text, status, err := p.request(ctx, user, words...)
	if err != nil {
		return "", err
	}
	return text, statusError(status, text)
}

// breakShell ends a shell whose answer did not come whole. One that has ended by
// itself has nothing running.
func (p *plain) breakShell(ctx context.Context, s *shell, err error) {
	if errors.Is(err, errShellEnded) {
		_ = s.conn.Close()
		return
	}
	p.dropShell(ctx, s)
}

// explain says why a request was not answered: the context, the end of the handle
// or of the container, or err.
func (p *plain) explain(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	if cause := p.lasting(); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: %w", primitives.ErrUnavailable, explain(p.eng, err))
}
