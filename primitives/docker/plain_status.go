package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/primitives"
)

// How often the engine is asked whether a command has exited while its streams are
// still open: others may hold them. It ends the streams two seconds after the exit.
const (
	firstLook = 100 * time.Millisecond
	lastLook  = time.Second
)

// watch finds out how the command ends.
func (proc *plainProcess) watch() {
	pumped := proc.pumped
	pause := firstLook
	if !proc.lookOn(&pause, pumped) {
		return
	}
	if proc.timer != nil {
		proc.timer.Stop()
	}
	proc.unlink()
	close(proc.exited)
	proc.outputs.drain()
	<-proc.pumped
	end := io.EOF
	if proc.status.Reason == primitives.ReasonLost || proc.err != nil {
		if end = proc.p.usable(); end == nil {
			end = io.ErrUnexpectedEOF
		}
		end = proc.p.fail("read", proc.ID(), end)
	}
	proc.outputs.finish(end)
}

// lookOn looks until the command has exited and sets its status.
func (proc *plainProcess) lookOn(pause *time.Duration, pumped <-chan struct{}) bool {
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	for {
		select {
		case <-pumped:
			// The engine is about to notice, too.
			pumped, *pause = nil, time.Millisecond
		case <-proc.look:
		case <-timer.C:
			*pause = min(2**pause, lastLook)
		}
		if proc.settle() {
			return true
		}
		timer.Reset(*pause)
	}
}

// settle asks the engine and sets the status if the command has exited.
func (proc *plainProcess) settle() bool {
	ctx, cancel := proc.within(plainCall)
	defer cancel()
	found, err := proc.inspect(ctx)
	if err == nil && found.Running {
		return false
	}
	if err == nil && proc.why() == "" {
		ending, aerr := proc.p.isEnding(ctx)
		switch {
		case ending:
			proc.setReason(primitives.ReasonCancelled)
		case found.ExitCode == 128+9 && !proc.hasSent(9):
			err = aerr // it was not the command that was killed, but everything
		}
	}
	if err == nil {
		proc.status = proc.statusOf(found.ExitCode)
		return true
	}
	proc.status = primitives.ExitStatus{Reason: primitives.ReasonLost}
	cause := proc.p.lasting()
	switch {
	case cause == nil:
		proc.err = proc.p.fail("wait", proc.ID(), fmt.Errorf("%w: %w", primitives.ErrUnavailable, explain(proc.p.eng, err)))
	case proc.why() != "":
		proc.status.Reason = proc.why()
	case errors.Is(cause, primitives.ErrTerminated):
		proc.status.Reason = primitives.ReasonCancelled
	}
	return true
}

// engineDrain is longer than the engine reads the outputs of a command that has
// exited: two seconds, if others hold them.
const engineDrain = 3 * time.Second

// inspect asks the engine about the command. Since release 24 it does not answer
// about one that has exited before it has read the outputs, and never while it
// cannot get rid of what it has read. So if it is silent the outputs take what
// comes; if that fills them after the command has exited, because others go on
// printing, the engine is relieved of them.
func (proc *plainProcess) inspect(ctx context.Context) (container.ExecInspect, error) {
	lift := time.AfterFunc(firstLook, proc.outputs.lift)
	defer func() {
		if !lift.Stop() {
			proc.outputs.lower()
		}
	}()
	found, silent, err := proc.inspectBriefly(ctx)
	if !silent {
		return found, err
	}
	_, status, err := proc.p.request(ctx, proc.cmd.User, "hit", "", strconv.Itoa(proc.pid))
	if err == nil && status != 0 { // there is no such process
		proc.outputs.drain()
		if found, silent, err = proc.inspectBriefly(ctx); !silent {
			return found, err
		}
		if proc.outputs.cut(proc.p.fail("read", proc.ID(), io.ErrUnexpectedEOF)) {
			proc.conn.Close()
		}
	}
	return proc.p.eng.ContainerExecInspect(ctx, proc.conn.id)
}

// inspectBriefly asks the engine, which is silent if it needs longer than engineDrain.
func (proc *plainProcess) inspectBriefly(ctx context.Context) (found container.ExecInspect, silent bool, err error) {
	brief, cancel := context.WithTimeout(ctx, engineDrain)
	defer cancel()
	found, err = proc.p.eng.ContainerExecInspect(brief, proc.conn.id)
	return found, err != nil && brief.Err() != nil && ctx.Err() == nil, err
}

func (proc *plainProcess) why() primitives.ExitReason {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	return proc.reason
}

func (proc *plainProcess) hasSent(number int) bool {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	return proc.sent[number]
}

// statusOf makes a status of what the engine reports: 128 and the number of a
// signal, which may as well be a code. It is taken for a signal if this handle
// sent that one.
func (proc *plainProcess) statusOf(code int) primitives.ExitStatus {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	status := primitives.ExitStatus{Code: code, Reason: primitives.ReasonExited}
	if code > 128 && proc.sent[code-128] {
		status.Signal, status.Reason = signalName(code-128), primitives.ReasonSignaled
	}
	if proc.reason != "" {
		status.Reason = proc.reason
	}
	return status
}
