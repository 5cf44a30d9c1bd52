package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// ReapOrphans makes this program reap the orphans of its commands. Otherwise process 1 gets them,
// which in many containers reaps nothing: there each orphan, and the collector process of each
// program, stays as a zombie and counts as a process. It changes the whole program, so only a main
// function should call it. Call end when all sandboxes are closed: it reaps the rest, and ends the
// collector process unless that has a sandbox to end after its grace period.
//
// What outlives the program, such as the commands in a sandbox that is kept, still goes to
// process 1. On macOS ReapOrphans does nothing.
func ReapOrphans() (end func()) {
	r, err := newReaper(nil)
	return sync.OnceFunc(func() {
		if err == nil {
			r.close()
		}
		ownCollector.finish()
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err != unix.EINTR && pid <= 0 {
				return
			}
		}
	})
}

// newReaper starts a reaper. sb is nil if it reaps for the whole program.
func newReaper(sb *Sandbox) (*reaper, error) {
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, err
		}
	}
	r := &reaper{
		sb: sb, group: unix.Getpgrp(), children: make(chan os.Signal, 1),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	signal.Notify(r.children, syscall.SIGCHLD)
	go r.run()
	return r, nil
}

// finishTimeout is how long a collector process may take to answer.
const finishTimeout = 5 * time.Second

// finish ends the collector process if nothing is left for it to do, and reaps it.
func (c *orphanCollector) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket < 0 {
		return
	}
	limit := unix.NsecToTimeval(finishTimeout.Nanoseconds())
	_ = unix.SetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	_ = unix.Shutdown(c.socket, unix.SHUT_WR)
	var answer [1]byte
	_ = ignoreEINTR(func() error {
		n, err := unix.Read(c.socket, answer[:])
		if err == nil && n == 0 { // it has nothing to do, and exits
			_, err = unix.Wait4(c.pid, nil, 0, nil)
		}
		return err
	})
	_ = unix.Close(c.socket)
	c.socket = -1
}

const (
	// reapTime is how long process 1 may take to reap an orphan, which it mostly does at once.
	reapTime = time.Second
	reapTurn = 5 * time.Millisecond
)

// Examine finds out whether process 1 reaps orphans: it makes one.
func (p Provider) Examine(ctx context.Context, _ primitives.Spec) []primitives.Finding {
	found := primitives.Finding{Subject: "orphans", Detail: "process 1 reaps them"}
	if !orphanIsReaped(ctx) {
		found.Status = primitives.FindingMissing
		found.Detail = "process 1 does not reap them: a zombie stays of each one that outlives its program, until no process can be started"
		found.Advice = "start the container with an init: docker run --init"
	}
	return []primitives.Finding{found}
}

// orphanIsReaped makes an orphan that ends, and reports whether it is reaped. It returns true if it
// cannot find out. This program must not adopt the orphan.
func orphanIsReaped(ctx context.Context) bool {
	var adopts int
	if unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&adopts)), 0, 0, 0) == nil && adopts != 0 {
		if unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == nil {
			defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }()
		}
	}
	wait, end, err := os.Pipe()
	if err != nil {
		return true
	}
	// It waits for the end of the shell, which would reap it otherwise.
	cmd := exec.CommandContext(ctx, "sh", "-c", "cat <&3 >/dev/null 2>&1 & echo $!")
	cmd.ExtraFiles = []*os.File{wait}
	out, err := cmd.Output()
	pid, perr := strconv.Atoi(strings.TrimSpace(string(out)))
	orphan, serr := proctree.Stat(pid)
	if errors.Join(err, perr, serr, wait.Close(), end.Close()) != nil {
		return true
	}
	// Count how often it is seen as a zombie: the orphan, process 1 and this program may each stand
	// still for a while.
	latest := time.Now().Add(time.Minute)
	for seen := 0; seen < int(reapTime/reapTurn); <-time.After(reapTurn) {
		p, err := proctree.Stat(pid)
		if err != nil || p.Start != orphan.Start || ctx.Err() != nil || time.Now().After(latest) {
			return true
		}
		if p.Zombie {
			seen++
		}
	}
	return false
}
