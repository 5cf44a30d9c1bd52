package docker

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// fate asks the engine what state a container is in, or what became of it.
func fate(ctx context.Context, eng *client.Client, id string) (primitives.State, error) {
	found, err := eng.ContainerInspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		return postMortem(ctx, eng, id)
	case err != nil:
		return primitives.State{}, explain(eng, err)
	case found.State == nil:
		return primitives.State{Status: primitives.StatusLost}, nil
	case found.State.Paused:
		return primitives.State{Status: primitives.StatusPaused}, nil
	case found.State.Running:
		return primitives.State{Status: primitives.StatusRunning}, nil
	}
	if state, err := postMortem(ctx, eng, found.ID); err == nil && state.Status == primitives.StatusTerminated {
		return state, nil
	}
	return exited(found.State.ExitCode, found.State.OOMKilled), nil
}

// postMortem looks at the latest events of the engine for how a container that
// was removed has ended.
func postMortem(ctx context.Context, eng *client.Client, id string) (primitives.State, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	until := time.Now()
	messages, failed := eng.Events(ctx, events.ListOptions{
		Until:   strconv.FormatInt(until.Unix(), 10) + "." + strconv.Itoa(1e9 + until.Nanosecond())[1:],
		Filters: filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("container", id)),
	})
	state := primitives.State{Status: primitives.StatusLost}
	oom := false
	for {
		select {
		case m := <-messages:
			if marksEnd(m) {
				return primitives.State{Status: primitives.StatusTerminated}, nil
			}
			switch m.Action {
			case events.ActionOOM:
				oom = true
			case events.ActionDie:
				if code, err := strconv.Atoi(m.Actor.Attributes["exitCode"]); err == nil {
					state = exited(code, oom)
				}
			}
		case <-failed: //nolint:errcheck // also the end; what was found until then counts
			return state, nil
		}
	}
}

// exited is the state of a container whose first process has ended.
func exited(code int, oom bool) primitives.State {
	exit := primitives.ExitStatus{Code: code, Reason: primitives.ReasonExited}
	if code == 128+9 {
		exit.Signal, exit.Reason = primitives.SIGKILL, primitives.ReasonSignaled
		if oom {
			exit.Reason = primitives.ReasonOOM
		}
	}
	return primitives.State{Status: primitives.StatusExited, Exit: exit}
}

// endedByItself reports whether the first process ended because it was to, or was
// never of any use: its grace is over, it was terminated, or nobody shook hands with
// it. Signals end it with other statuses.
func endedByItself(exit primitives.ExitStatus) bool {
	return exit.Reason == primitives.ReasonExited && exit.Code <= 1
}

// notRunning says of a container that was found what became of it.
func notRunning(found container.InspectResponse) error {
	state := found.State
	switch {
	case state == nil:
		return errGone
	case state.Status == container.StateCreated:
		return fmt.Errorf("%w: remove the sandbox and make a new one: its container was never started", primitives.ErrUnavailable)
	case state.Status == container.StateRemoving, found.HostConfig != nil && found.HostConfig.AutoRemove:
		return fmt.Errorf("%w: its container has ended and is being removed", fs.ErrNotExist)
	case state.Status == container.StateExited:
		cause := ""
		if state.OOMKilled {
			cause = " because it had used up its memory"
		}
		return fmt.Errorf("%w: copy what is wanted of its files with \"docker cp\", then remove it: its container has ended with status %d%s: %w",
			primitives.ErrUnavailable, state.ExitCode, cause, os.ErrProcessDone)
	}
	return errGone
}
