package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// To mark a container as terminated, an exec is created in it and never started, which takes the
// engine no time. Other connected programs find the exec in the engine's events. A new name would
// tell them, too; but old engines keep half of a container forever if it is renamed while it is
// removed, as when two programs terminate it at once.
const (
	endProgram = "agentenv"
	endReason  = "terminate"
	endAction  = events.ActionExecCreate + ": " + endProgram + " " + endReason
)

// A paused container accepts no exec. It gets a signal instead, which its programs ignore.
const (
	endSignal       = "SIGRTMIN+7"
	endSignalNumber = "41"
)

// marksEnd reports whether an event says that Terminate was called.
func marksEnd(m events.Message) bool {
	return m.Action == endAction || m.Action == events.ActionKill && m.Actor.Attributes["signal"] == endSignalNumber
}

// markLasts is how long a mark can be expected to be found. The engine remembers its last 256
// events, which on a busy machine cover a few seconds.
const markLasts = time.Second

// markEnd marks a container as terminated, even if ctx is done. It ignores errors: the container is
// removed in any case, and may be gone already.
func markEnd(ctx context.Context, eng *client.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTimeout)
	defer cancel()
	_, err := eng.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: []string{endProgram, endReason}})
	if err != nil && !cerrdefs.IsNotFound(err) {
		_ = eng.ContainerKill(ctx, id, endSignal)
	}
}

// ownEndTimeout is how long an idle guest may take to end, and the engine to notice that, and to
// remove the container if it does that by itself.
const ownEndTimeout = 2 * time.Second

// awaitOwnEnd begins to wait for the end of a container whose first process will end by itself,
// even if ctx is done. Then the engine need not kill the process, which takes a tenth of the time
// to remove a container. The returned function waits for the end if comes is true, else it stops
// waiting.
func (d *driver) awaitOwnEnd(ctx context.Context) (wait func(comes bool)) {
	if !d.first {
		return func(bool) {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	condition := container.WaitConditionRemoved
	if d.cfg.Keep {
		condition = container.WaitConditionNotRunning // the engine does not remove it
	}
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		over, failed := d.eng.ContainerWait(ctx, d.container, condition)
		select { // the client blocks until its result is received
		case <-over:
		case <-failed: //nolint:errcheck // the removal reports it
		}
	}()
	return func(comes bool) {
		if comes {
			timer := time.AfterFunc(ownEndTimeout, cancel)
			<-noted
			timer.Stop()
		}
		cancel()
		<-noted
	}
}

const (
	// removeTimeout is how long the engine may take to remove a container.
	removeTimeout = time.Minute
	// An engine may fail to remove a container while its machine is still busy with it.
	removeAttempts = 3
	removePause    = 200 * time.Millisecond
)

// removeContainer ends and removes a container with its volumes, even if ctx is done. A missing
// container is no error.
func removeContainer(ctx context.Context, eng *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	ctx, stop := engine.WhileAnswering(ctx, eng)
	defer stop()
	var err error
	for attempt := range removeAttempts {
		if attempt > 0 {
			pause := time.NewTimer(removePause)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		err = eng.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if cerrdefs.IsConflict(err) {
			// The engine is removing it already, because it has ended or for another
			// client.
			err = awaitRemoval(ctx, eng, id)
		}
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		if ctx.Err() != nil || client.IsErrConnectionFailed(err) {
			break
		}
	}
	if errors.Is(context.Cause(ctx), engine.ErrSilent) {
		return engine.ErrSilent
	}
	return engine.Explain(eng, err)
}

// awaitRemoval waits until a container is removed. It also polls: some engines, such as 20.10,
// never answer a wait that begins at the moment of the removal.
func awaitRemoval(ctx context.Context, eng *client.Client, id string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone, failed := eng.ContainerWait(ctx, id, container.WaitConditionRemoved)
	tick := time.NewTicker(removePause)
	defer tick.Stop()
	for {
		select {
		case end := <-gone:
			if end.Error != nil && end.Error.Message != "" {
				return fmt.Errorf("remove the container: %w", errors.New(end.Error.Message))
			}
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
			if _, err := eng.ContainerInspect(ctx, id); !cerrdefs.IsNotFound(err) {
				continue
			}
			cancel()
			select { // the client blocks until its result is received
			case <-gone:
			case <-failed: //nolint:errcheck // the container is gone
			}
			return nil
		}
	}
}

// Remove terminates a sandbox of [Provider.Create] by its ID and removes it with its files, in
// every state and for every owner. If the guest answers soon it ends the processes with their grace
// period; else the engine kills them.
//
// An ID without a sandbox is fs.ErrNotExist, also if it is a container that this package did not
// make.
func (p Provider) Remove(ctx context.Context, id string) error {
	return wrap("remove", id, remove(ctx, config{Provider: p}, id))
}

func remove(ctx context.Context, cfg config, id string) error {
	eng, found, err := find(ctx, cfg, id)
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, guest.DefaultHandshakeTimeout)
	s, err := attachTo(soon, eng, found, cfg)
	cancel()
	if err == nil {
		_, err = s.Terminate(ctx)
		return errors.Join(err, s.Close())
	}
	if err = ctx.Err(); err == nil {
		err = discard(ctx, eng, found)
	}
	return errors.Join(err, engine.Release(eng))
}

// discard removes a container, without asking the guest, and everything that belongs to it.
func discard(ctx context.Context, eng *client.Client, found container.InspectResponse) error {
	markEnd(ctx, eng, found.ID)
	err := errors.Join(removeContainer(ctx, eng, found.ID), fastpath.Remove(eng.DaemonHost(), found.Config.Labels[labelSandbox]))
	if err == nil && found.Config.Labels[labelFork] != "" {
		err = dropForks(ctx, eng, found.Image)
	}
	return err
}
