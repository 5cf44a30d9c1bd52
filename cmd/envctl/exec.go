package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	xterm "golang.org/x/term"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// execFlags are the flags of exec.
type execFlags struct {
	target
	makeFlags
	tty     bool
	dir     string
	user    string
	timeout time.Duration
}

func (a *app) newExecCmd() *cobra.Command {
	f := &execFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "exec [flags] [ID] -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in the sandbox with that ID, or in a new one that ends with the
command. Standard input, output and error are the command's, and so is the exit
status: 128 plus the number of the signal that ended it, 124 after --timeout, 125
when the sandbox failed, 126 when the command cannot be run, 127 when there is none.
Ctrl-C ends the command, with status 130; with -t it goes to the command instead.

The command's output is not filtered: a terminal obeys the escape sequences in it.`,
		Example: `  envctl exec -- uname -a
  envctl exec -t 3f2a -- sh
  tar c . | envctl exec 3f2a -- tar x
  envctl exec --image python:3.13 --network none -- python3 -c 'print(1)'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash < 0 || dash > 1 || dash == len(args) {
				return usagef("write the command after --: envctl exec [ID] -- COMMAND [ARG...]")
			}
			id := ""
			if dash == 1 {
				if id = args[0]; id == "" {
					return usagef("the ID is empty, perhaps from a variable that is not set; give the ID of a sandbox, or leave it out for a new one")
				}
			}
			if f.timeout < 0 {
				return usagef("--timeout: %v is negative; give a positive duration, such as 90s or 5m, or 0 for no limit", f.timeout)
			}
			return f.run(cmd.Context(), id, args[dash:])
		},
	}
	f.target.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	f.envFlag(cmd)
	f.makeFlags.flags(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&f.tty, "tty", "t", false, "run on a terminal")
	fl.StringVarP(&f.dir, "workdir", "w", "", "working directory (default: the workspace)")
	fl.StringVarP(&f.user, "user", "u", "", "user of the sandbox")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the command after this time, as in 90s or 5m (default no limit)")
	return cmd
}

func (f *execFlags) run(ctx context.Context, id string, args []string) (err error) {
	variables, err := variables(f.env)
	if err != nil {
		return err
	}
	env, err := f.open(ctx, id)
	switch {
	case errors.Is(err, environment.ErrConfig), err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return noSandbox(err)
	}
	defer func() {
		if cerr := env.Close(); err == nil && cerr != nil {
			err = execFailure(cerr)
		}
	}()
	cmd := primitives.Command{Args: args, Dir: f.dir, User: f.user, Timeout: f.timeout, Stdin: true, Env: env.GatewayEnv()}
	for key, value := range variables {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	if f.tty {
		restore, err := f.terminal(&cmd)
		if err != nil {
			return err
		}
		defer restore()
	}
	proc, err := env.Primitive().Exec(ctx, cmd)
	if f.user != "" && errors.Is(err, primitives.ErrWorkingDir) && errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; make the sandbox for that user (sandbox: {type: local, user: %s}) or give --workdir a folder that %[2]s may enter", err, f.user)
	}
	if err != nil {
		return execFailure(adviseSandbox(env.ID(), err))
	}
	status, err := f.connect(ctx, proc)
	switch {
	case err != nil:
		return execFailure(adviseSandbox(env.ID(), err))
	case status.Reason == primitives.ReasonCancelled && ctx.Err() != nil:
		return ctx.Err()
	case status.Reason == primitives.ReasonCancelled:
		// Only the end of the sandbox cancels the command here. The sandbox may take a while to
		// end.
		return execFailure(adviseSandbox(env.ID(), primitives.ErrTerminated))
	case status.Signal != "" && status.Reason != primitives.ReasonTimeout && ctx.Err() == nil:
		// A sandbox that ends kills its commands first, also by a signal.
		if gone := adviseSandbox(env.ID(), env.Healthy(ctx)); gone != nil {
			return execFailure(gone)
		}
	}
	if status.Reason == primitives.ReasonOOM {
		fmt.Fprintln(f.app.err, "envctl: the sandbox ran out of memory; give it more memory, for example with --memory")
	}
	if code := exitCode(status); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// adviseSandbox adds advice to the error of a command whose sandbox has ended or cannot be
// reached. It returns other errors unchanged.
func adviseSandbox(id string, err error) error {
	switch {
	case errors.Is(err, primitives.ErrTerminated), errors.Is(err, os.ErrProcessDone):
		return fmt.Errorf("the sandbox ended before the command: %w; 'envctl logs %s' tells what happened", err, id)
	case errors.Is(err, primitives.ErrUnavailable):
		return fmt.Errorf("sandbox %s could not be reached to the end of the command: %w; 'envctl ls' tells whether it still runs", id, err)
	}
	return err
}

// open attaches to a sandbox, or creates one if id is empty.
func (f *execFlags) open(ctx context.Context, id string) (*environment.Environment, error) {
	if id != "" {
		if flag := f.given(); flag != "" {
			return nil, usagef("leave out %s or the ID: it is for a new sandbox", flag)
		}
		return f.attach(ctx, id)
	}
	cfg, err := f.loadNew(ctx, &f.makeFlags)
	if err != nil {
		return nil, err
	}
	cfg.Sandbox.Keep = false // the sandbox ends with the command
	return environment.Create(ctx, cfg)
}

// noSandbox returns the error of a command without a sandbox. Unless err has an exit status, the
// status is exitExecFailed: only a command that was tried can be missing or not executable.
func noSandbox(err error) error {
	if status := (*exitError)(nil); errors.As(err, &status) {
		return err
	}
	return &exitError{code: exitExecFailed, err: err}
}

// execFailure returns err with the exit status of a command that did not run.
func execFailure(err error) error {
	var status *exitError
	switch {
	case errors.As(err, &status):
		return err
	case errors.Is(err, primitives.ErrCommandNotFound):
		return &exitError{code: exitNotFound, err: err}
	case errors.Is(err, primitives.ErrWorkingDir), errors.Is(err, fs.ErrNotExist):
		return &exitError{code: exitExecFailed, err: err}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrInvalid):
		return &exitError{code: exitNotExecuted, err: err}
	}
	return &exitError{code: exitExecFailed, err: err}
}

func exitCode(s primitives.ExitStatus) int {
	switch s.Reason {
	case primitives.ReasonTimeout:
		return exitTimeout
	case primitives.ReasonLost:
		return exitExecFailed
	}
	return s.Code
}

// terminal puts this program's terminal into raw mode and gives the command one
// of the same size.
func (f *execFlags) terminal(cmd *primitives.Command) (restore func(), err error) {
	in, ok := f.app.in.(*os.File)
	if !ok || !xterm.IsTerminal(int(in.Fd())) {
		return nil, usagef("leave out -t: standard input is no terminal")
	}
	cmd.TTY = terminalSize(in)
	state, err := xterm.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	if name := os.Getenv("TERM"); name != "" {
		cmd.Env = append([]string{"TERM=" + name}, cmd.Env...)
	}
	return func() { _ = xterm.Restore(int(in.Fd()), state) }, nil
}

func terminalSize(f *os.File) *primitives.TerminalSize {
	cols, rows, err := xterm.GetSize(int(f.Fd()))
	if err != nil {
		return &primitives.TerminalSize{Rows: 24, Cols: 80}
	}
	return &primitives.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)} // the kernel has them as uint16
}

// connect copies the streams until the command has exited and its output has ended, or until ctx
// is done.
func (f *execFlags) connect(ctx context.Context, proc primitives.Process) (primitives.ExitStatus, error) {
	// A read of standard input cannot be cancelled; the goroutine ends with the program.
	go func() {
		_, _ = io.Copy(proc.Stdin(), f.app.in)
		_ = proc.Stdin().Close()
	}()
	if f.tty {
		defer f.followSize(ctx, proc)()
	}
	var streams sync.WaitGroup
	var outErr, errErr error
	streams.Go(func() { outErr = copyStream(f.app.out.File, proc.Stdout()) })
	streams.Go(func() { errErr = copyStream(f.app.err.File, proc.Stderr()) })
	status, err := proc.Wait(context.WithoutCancel(ctx))
	if err != nil {
		_ = proc.Close() // ends the streams, too; err has the cause
		streams.Wait()
		return status, err
	}
	ended := make(chan struct{})
	go func() {
		streams.Wait()
		close(ended)
	}()
	enough := ctx.Done()
	if ctx.Err() != nil {
		enough = f.app.forceExit // the whole process tree was killed; its last output may still arrive
	}
	select {
	case <-ended:
		return status, errors.Join(outErr, errErr, proc.Close())
	case <-enough: // orphans of the command keep its output open
		err = proc.Close()
		<-ended
		return status, err
	}
}

// copyStream copies src to dst. If dst fails it closes src, so that the command gets EPIPE.
func copyStream(dst io.Writer, src io.ReadCloser) error {
	_, err := io.Copy(dst, src)
	if err == nil {
		return nil
	}
	closeErr := src.Close()
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return errors.Join(err, closeErr)
}

// followSize forwards changes of the terminal's size to the command, until stop is called.
func (f *execFlags) followSize(ctx context.Context, proc primitives.Process) (stop func()) {
	in, ok := f.app.in.(*os.File)
	if !ok {
		return func() {}
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	done := make(chan struct{})
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-changes:
				_ = proc.Resize(ctx, *terminalSize(in))
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(changes)
		close(done)
		following.Wait()
	}
}
