package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// signals are the numbers of Linux on the platforms that engines run on.
func signals() map[primitives.Signal]int {
	return map[primitives.Signal]int{
		"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
		"SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20,
		"TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29,
		"PWR": 30, "SYS": 31,
	}
}

func signalNumber(sig primitives.Signal) int { return signals()[sig] }

func signalName(number int) primitives.Signal {
	for name, n := range signals() {
		if n == number {
			return name
		}
	}
	return ""
}

// end starts the ladder, once. It does not wait for it.
func (proc *plainProcess) end(reason primitives.ExitReason) {
	proc.ending.Do(func() {
		proc.setReason(reason)
		proc.tasks.Go(func() {
			defer close(proc.laddered)
			proc.climb()
		})
	})
}

// setReason says why this handle ends the command; the first reason counts.
func (proc *plainProcess) setReason(reason primitives.ExitReason) {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	select {
	case <-proc.exited:
	default:
		if proc.reason == "" {
			proc.reason = reason
		}
	}
}

// noteSignals keeps in mind which signals this handle has sent.
func (proc *plainProcess) noteSignals(numbers ...int) {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	for _, n := range numbers {
		proc.sent[n] = true
	}
}

const (
	// plainPoll is how often it is looked whether processes have ended.
	plainPoll = 20 * time.Millisecond
	// plainKill is how long processes may take to vanish once they are killed.
	plainKill = 10 * time.Second
)

// climb asks all processes of the command to leave, and kills those that are
// there after the grace.
func (proc *plainProcess) climb() {
	ctx, cancel := proc.within(proc.cmd.GracePeriod() + plainKill)
	defer cancel()
	if done, err := proc.hasExited(ctx); done || err != nil {
		return
	}
	if grace := proc.cmd.GracePeriod(); grace > 0 && proc.tell(ctx, "TERM", 15) {
		gctx, gcancel := context.WithTimeout(ctx, grace)
		gone := proc.until(gctx, func() bool { return !proc.tell(gctx, "", 0) && gctx.Err() == nil })
		gcancel()
		if gone {
			return
		}
	}
	// New ones may appear while it looks.
	proc.until(ctx, func() bool { return !proc.tell(ctx, "KILL", 9) && ctx.Err() == nil })
}

// until tries something again and again; false if ctx ended first.
func (proc *plainProcess) until(ctx context.Context, try func() bool) bool {
	tick := time.NewTicker(plainPoll)
	defer tick.Stop()
	for !try() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// tell signals all processes of the command, and reports whether there are any.
// Where nobody can be asked there are none.
func (proc *plainProcess) tell(ctx context.Context, signal string, number int) bool {
	proc.noteSignals(number)
	text, err := proc.p.ask(ctx, proc.cmd.User, "tell", signal, strconv.Itoa(proc.pid), proc.mark())
	return err == nil && strings.TrimSpace(text) != ""
}

// abandon ends a command of which it is not known whether it has started.
func (proc *plainProcess) abandon() {
	proc.conn.Close()
	proc.p.background.Go(func() {
		ctx, cancel := proc.within(plainKill)
		defer cancel()
		proc.until(ctx, func() bool {
			_, err := proc.p.ask(ctx, proc.cmd.User, "tell", "KILL", "none", proc.mark())
			found, ierr := proc.p.eng.ContainerExecInspect(ctx, proc.conn.id)
			return err != nil || ierr != nil || !found.Running && found.Pid != 0
		})
	})
}

// plainVictim is a process that Terminate found.
type plainVictim struct {
	primitives.KilledProcess
	user  string
	grace time.Duration
	until time.Time // when it is given up after it was killed
}

// endingFile is there while somebody terminates the sandbox: other handles see that
// their commands end, and not why. The engine's events tell too (see markEnd), but 15 ms
// is much for each command that ends.
func (p *plain) endingFile() string { return path.Join(p.paths.App, "ending") }

// isEnding reports whether somebody terminates the sandbox, or has done so.
func (p *plain) isEnding(ctx context.Context) (bool, error) {
	_, status, err := p.request(ctx, "", "test", "-e", p.endingFile())
	return err == nil && status == 0 || errors.Is(err, primitives.ErrTerminated), err
}

// Terminate ends all processes of the container but its first one and the control
// shells. The Sandbox removes the container afterwards.
func (p *plain) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	if err := p.usable(); err != nil {
		return primitives.TerminateReport{}, err
	}
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), plainCall)
	_, _ = p.ask(lasting, "", "mkdir", p.endingFile())
	victims, err := p.everyone(lasting)
	cancel()
	if err != nil {
		return primitives.TerminateReport{}, err
	}
	p.letLeave(ctx, victims)
	report := primitives.TerminateReport{}
	for _, v := range victims {
		report.Killed = append(report.Killed, v.KilledProcess)
	}
	// Their statuses are known before the container is gone.
	for _, proc := range p.running() {
		wctx, cancel := p.callContext(context.WithoutCancel(ctx))
		_, _ = proc.hasExited(wctx) // makes it look
		_, _ = proc.Wait(wctx)      // the status is the caller's to read
		cancel()
	}
	return report, nil
}

// everyone lists the processes that commands have started, each with its grace.
func (p *plain) everyone(ctx context.Context) ([]*plainVictim, error) {
	graces := map[int]time.Duration{}
	for _, proc := range p.running() {
		proc.setReason(primitives.ReasonCancelled)
		proc.noteSignals(9, 15)
		text, err := p.ask(ctx, proc.cmd.User, "tell", "", strconv.Itoa(proc.pid), proc.mark())
		if err != nil {
			return nil, err
		}
		for id := range strings.FieldsSeq(text) {
			if n, err := strconv.Atoi(id); err == nil {
				graces[n] = proc.cmd.GracePeriod()
			}
		}
	}
	text, err := p.ask(ctx, "", "everyone")
	if err != nil {
		return nil, err
	}
	var victims []*plainVictim
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(fields) != 3 {
			continue
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, fmt.Errorf("list of processes: %w", err)
		}
		grace, mine := graces[id]
		if !mine {
			grace = primitives.DefaultGrace
		}
		user := fields[1]
		if user == p.image.uid {
			user = ""
		}
		victims = append(victims, &plainVictim{KilledProcess: primitives.KilledProcess{PID: id, Command: fields[2]}, user: user, grace: grace})
	}
	return victims, nil
}

// letLeave asks the processes to leave and returns when they have, or when they
// were killed after their grace. When ctx ends the politeness does.
func (p *plain) letLeave(ctx context.Context, victims []*plainVictim) {
	lasting := context.WithoutCancel(ctx)
	start := time.Now()
	left := victims
	for signal := "TERM"; len(left) > 0; signal = "" {
		var stay []*plainVictim
		for _, v := range left {
			send := signal
			if ctx.Err() != nil || time.Since(start) >= v.grace {
				if !v.Forced {
					v.until = time.Now().Add(plainKill)
				}
				send, v.Forced = "KILL", true
			}
			// What cannot be killed ends with the container.
			if p.alive(lasting, v, send) && (!v.Forced || time.Now().Before(v.until)) {
				stay = append(stay, v)
			}
		}
		left = stay
		if len(left) > 0 {
			timer := time.NewTimer(plainPoll)
			<-timer.C
		}
	}
}

// alive signals a process if it lives and reports whether it did.
func (p *plain) alive(ctx context.Context, v *plainVictim, signal string) bool {
	ctx, cancel := p.callContext(ctx)
	defer cancel()
	_, status, err := p.request(ctx, v.user, "hit", signal, strconv.Itoa(v.PID))
	return err == nil && status == 0
}
