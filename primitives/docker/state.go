package docker

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/ended"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

const (
	// stateTimeout is how long the engine may take to tell the state of a container.
	stateTimeout = 5 * time.Second
	// The engine may notice late what has happened: it is asked this often, at this interval.
	stateInterval = 50 * time.Millisecond
	stateAttempts = 20
)

// engineState asks the engine for the state of a container, and how it ended.
func engineState(ctx context.Context, eng *client.Client, id string) (primitives.State, error) {
	found, err := eng.ContainerInspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		list, _ := pastEvents(ctx, eng, id) // events before an error count, too
		return ending(list), nil
	case err != nil:
		return primitives.State{}, engine.Explain(eng, err)
	case found.State == nil:
		return primitives.State{Status: primitives.StatusLost}, nil
	case found.State.Paused:
		return primitives.State{Status: primitives.StatusPaused}, nil
	case found.State.Running:
		return primitives.State{Status: primitives.StatusRunning}, nil
	}
	list, _ := pastEvents(ctx, eng, found.ID) // without events at least the status is known
	state := ending(list)
	if state.Status == primitives.StatusTerminated {
		return state, nil
	}
	// The container's OOMKilled only says that the kernel ever killed the container or any command
	// in it for memory.
	return exited(found.State.ExitCode, state.Exit.Reason == primitives.ReasonOOM), nil
}

// oomLasts is the longest time between an OOM kill and the container's end for which the kill
// counts as the reason of the end. Mostly that time is some 50 ms; but an engine waits up to 2 s
// for the output before it reports an end, and a busy engine is late. A longer time would attribute
// more other ends, such as by a signal from the machine, to memory that a command had used up
// before.
const oomLasts = 5 * time.Second

// ending returns the state of a container according to its events, oldest first.
func ending(list []events.Message) primitives.State {
	state := primitives.State{Status: primitives.StatusLost}
	var oom int64   // time of the last OOM kill in the container
	killed := false // by a signal; the engine may report many killed processes late
	for _, m := range list {
		if marksEnd(m) {
			return primitives.State{Status: primitives.StatusTerminated}
		}
		switch m.Action {
		case events.ActionOOM:
			oom = m.TimeNano
		case events.ActionStart:
			oom, killed = 0, false
		case events.ActionKill:
			killed = killed || m.Actor.Attributes["signal"] == "9"
		case events.ActionDie:
			if code, err := strconv.Atoi(m.Actor.Attributes["exitCode"]); err == nil {
				state = exited(code, !killed && oom != 0 && m.TimeNano-oom <= int64(oomLasts))
			}
		}
	}
	return state
}

// exited returns the state of a container whose first process has ended.
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

// notRunning returns why a container that was found does not run.
func notRunning(found container.InspectResponse) error {
	state := found.State
	switch {
	case state == nil:
		return errGone
	case state.Status == container.StateCreated:
		return fmt.Errorf("%w: its container was never started; remove the sandbox and make a new one", primitives.ErrUnavailable)
	case state.Status == container.StateRemoving, found.HostConfig != nil && found.HostConfig.AutoRemove:
		return fmt.Errorf("%w: its container has ended and is being removed", fs.ErrNotExist)
	case state.Status == container.StateExited:
		after := ""
		if state.OOMKilled && state.ExitCode == 128+9 {
			after = " after its memory was used up" // maybe of a command only, long before
		}
		return ended.Because(fmt.Errorf("%w: its container has ended with status %d%s; start it again with \"docker start %s\", which keeps its files, or remove it",
			primitives.ErrUnavailable, state.ExitCode, after, strings.TrimPrefix(found.Name, "/")))
	}
	return errGone
}
