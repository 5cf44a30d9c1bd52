package docker

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Exec starts a command as an exec of the engine. It goes through the image's
// shell, which enters the directory, looks for the program, says under which
// number it runs, and then becomes it.
func (p *plain) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	proc, err := p.exec(ctx, cmd)
	if err != nil {
		return nil, p.fail("exec", firstWord(cmd.Args), err)
	}
	return proc, nil
}

// Run runs a command to its end.
func (p *plain) Run(ctx context.Context, cmd primitives.Command, opts primitives.RunOptions) (primitives.RunResult, error) {
	if err := primitives.CheckRun(cmd); err != nil {
		return primitives.RunResult{}, p.fail("run", firstWord(cmd.Args), err)
	}
	cmd.Stdin = opts.Stdin != nil
	proc, err := p.exec(ctx, cmd)
	if err != nil {
		return primitives.RunResult{}, p.fail("run", firstWord(cmd.Args), err)
	}
	return primitives.Collect(ctx, drained{proc}, opts)
}

// drained is a process that is waited for until also its output has ended: with
// the last of it the engine may be later than with the status. It ends all output
// two seconds after the exit, also that of processes in the background.
type drained struct{ *plainProcess }

func (d drained) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	status, err := d.plainProcess.Wait(ctx)
	select {
	case <-d.pumped:
	case <-d.released:
	}
	return status, err
}

func firstWord(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (p *plain) exec(ctx context.Context, cmd primitives.Command) (*plainProcess, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	switch {
	case cmd.Durable:
		return nil, p.unsupported("there are no durable commands")
	case cmd.TTY != nil && !p.image.terminals:
		return nil, p.unsupported("there are no terminals in an image without stty")
	}
	if err := p.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.checkUser(ctx, cmd.User); err != nil {
		return nil, err
	}
	tag := rand.Text()
	opts, err := p.execOptions(cmd, tag)
	if err != nil {
		return nil, err
	}
	conn, err := p.attachExec(ctx, opts)
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	proc := newPlainProcess(p, cmd, tag, conn)
	if err := proc.begin(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return proc, nil
}

// checkUser refuses a user that the image does not have; the engine would only
// say so in a text.
func (p *plain) checkUser(ctx context.Context, user string) error {
	name, group, _ := strings.Cut(user, ":")
	if isNumber(name) && isNumber(group) {
		return nil
	}
	_, status, err := p.request(ctx, "", "known", name, group)
	if err == nil && status != 0 {
		return fmt.Errorf("%w: %q", primitives.ErrUnknownUser, user)
	}
	return err
}

// isNumber reports whether s consists of digits; the empty string does.
func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// execOptions is the command as the engine takes it.
func (p *plain) execOptions(cmd primitives.Command, tag string) (container.ExecOptions, error) {
	opts := container.ExecOptions{
		User: cmd.User, AttachStdout: true, AttachStderr: true, AttachStdin: cmd.Stdin || cmd.TTY != nil,
		Tty: cmd.TTY != nil, WorkingDir: "/",
	}
	if cmd.TTY != nil {
		opts.ConsoleSize = &[2]uint{uint(cmd.TTY.Rows), uint(cmd.TTY.Cols)}
	}
	var script strings.Builder
	p.writePrologue(&script, cmd, tag)
	exports, err := splitEnv(cmd.Env, &opts.Env)
	if err != nil {
		return opts, err
	}
	opts.Env = append(opts.Env, plainHandleMark+"="+p.handle, plainExecMark+"="+tag)
	args := cmd.Args
	if !validText(args) {
		// The engine's API takes text only; such arguments go into the script.
		script.WriteString("set --")
		for _, arg := range args {
			script.WriteString(" " + scriptQuote(arg))
		}
		script.WriteString("\n")
		args = nil
	}
	script.WriteString(pathsScript)
	script.WriteString(startScript)
	script.WriteString(exports)
	if cmd.TTY != nil && p.image.stty != "" {
		fmt.Fprintf(&script, "%s rows %d cols %d\n", p.image.stty, cmd.TTY.Rows, cmd.TTY.Cols)
	}
	script.WriteString("printf '%s + %s\\n' \"$agentenv_tag\" $$\n")
	if cmd.MergeStderr {
		script.WriteString("exec 2>&1\n")
	}
	script.WriteString("case $1 in\n-*)\n\tshift\n\texec \"$agentenv_file\" \"$@\"\n\t;;\nesac\nexec \"$@\"\n")
	opts.Cmd = append([]string{plainShell, "-c", script.String(), "agentenv"}, args...)
	return opts, nil
}

// writePrologue writes what plain/start.sh needs to know.
func (p *plain) writePrologue(script *strings.Builder, cmd primitives.Command, tag string) {
	dir := cmd.Dir
	if dir == "" {
		dir = p.paths.Workspace
	}
	four := ""
	if p.image.readsFour {
		four = "-n 4"
	}
	fmt.Fprintf(script, "# agentenv command\nagentenv_tag=%s agentenv_root=%s agentenv_dir=%s agentenv_readlink=%s agentenv_four=%s agentenv_default=%s\n",
		tag, scriptQuote(p.paths.Workspace), scriptQuote(dir), scriptQuote(p.image.readlink), scriptQuote(four), scriptQuote(plainPath))
}

// splitEnv appends the entries that the engine's API takes to env and returns the
// others as lines of a script. The last entry of a variable wins.
func splitEnv(entries []string, env *[]string) (script string, err error) {
	last := map[string]int{}
	for i, e := range entries {
		key, _, _ := strings.Cut(e, "=")
		last[key] = i
	}
	var b strings.Builder
	for i, e := range entries {
		key, value, set := strings.Cut(e, "=")
		switch {
		case last[key] != i:
		case set && utf8.ValidString(e):
			*env = append(*env, e)
			if key == "PWD" || key == "OLDPWD" { // the shell sets them
				fmt.Fprintf(&b, "export %s=%s\n", key, scriptQuote(value))
			}
		case !isName(key):
			return "", fmt.Errorf("%w: without a guest the variable %q cannot be removed or hold what is no text", errors.ErrUnsupported, key)
		case set:
			fmt.Fprintf(&b, "export %s=%s\n", key, scriptQuote(value))
		default:
			*env = append(*env, key)
			fmt.Fprintf(&b, "unset %s\n", key)
		}
	}
	return b.String(), nil
}

// isName reports whether a shell can have a variable of that name.
func isName(key string) bool {
	for i, r := range key {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return key != ""
}

func validText(list []string) bool {
	for _, s := range list {
		if !utf8.ValidString(s) {
			return false
		}
	}
	return true
}

// scriptQuote quotes a word for a script that the engine's API takes, which is
// text: other bytes are written as numbers.
func scriptQuote(word string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for i := 0; i < len(word); {
		r, size := utf8.DecodeRuneInString(word[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `'"$(printf '\%03o')"'`, word[i])
		case r == '\'':
			b.WriteString(`'\''`)
		default:
			b.WriteString(word[i : i+size])
		}
		i += size
	}
	b.WriteByte('\'')
	return b.String()
}

// maxFirstLine bounds what an exec may say before the command runs.
const maxFirstLine = 8 << 10

// firstLine is what start.sh says: the number under which the command runs, or why
// it does not.
func (proc *plainProcess) firstLine() (pid int, err error) {
	line, err := proc.source.line(&proc.outputs.err)
	fields := strings.Fields(line)
	if err != nil || len(fields) != 3 || fields[0] != proc.tag {
		// The engine itself says why it could not start the shell, as text.
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, err
		}
		return 0, &startError{text: strings.ToValidUTF8(strings.TrimSpace(line), "?")}
	}
	number, err := strconv.Atoi(fields[2])
	if err != nil {
		return 0, &startError{text: "it answers with " + fields[2]}
	}
	switch fields[1] {
	case "+":
		return number, nil
	case "directory":
		return 0, workingDirError(number)
	}
	return 0, programError(number)
}

// startError is that the engine could not even start the shell of a command.
type startError struct{ text string }

func (e *startError) Error() string {
	return "the engine could not start the image's shell: " + e.text
}

func workingDirError(status int) error {
	return fmt.Errorf("%w: %w", primitives.ErrWorkingDir, statusError(status, ""))
}

func programError(status int) error {
	err := statusError(status, "")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, primitives.ErrNotDirectory):
		return fmt.Errorf("%w: neither at its path nor in the command's PATH, or its interpreter is missing: %w", primitives.ErrCommandNotFound, fs.ErrNotExist)
	case errors.Is(err, fs.ErrInvalid):
		return fmt.Errorf("%w: it is neither a binary nor a script with a #! line", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: it is not executable by this user", err)
	}
	return err
}
