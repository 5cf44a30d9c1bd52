package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// History returns what the engine remembers of a sandbox's container, oldest first. Engines
// remember a few hundred events, also of removed containers. If the events are lost History returns
// when the container was made and started, and how it ended. A container that the engine does not
// remember is fs.ErrNotExist.
func (p Provider) History(ctx context.Context, id string) ([]primitives.Incident, error) {
	var list []primitives.Incident
	err := p.askAbout("history", id, func(eng *client.Client) error {
		var err error
		list, err = remembered(ctx, eng, id)
		if err == nil && len(list) == 0 {
			list, err = inspected(ctx, eng, id)
		}
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("%w: the engine remembers no such container", fs.ErrNotExist)
		}
		return err
	})
	return list, err
}

func remembered(ctx context.Context, eng *client.Client, id string) ([]primitives.Incident, error) {
	past, err := pastEvents(ctx, eng, id,
		events.ActionCreate, events.ActionStart, events.ActionOOM, events.ActionKill, events.ActionDie, events.ActionPause,
		events.ActionUnPause, events.ActionRename, events.ActionDestroy, endAction)
	var list []primitives.Incident
	for _, m := range past {
		list = append(list, primitives.Incident{Time: time.Unix(0, m.TimeNano).UTC(), Message: incident(m), OutOfMemory: m.Action == events.ActionOOM})
	}
	return list, err
}

// inspected returns what the engine knows of a sandbox's container without its events. It returns
// nothing for other containers.
func inspected(ctx context.Context, eng *client.Client, id string) ([]primitives.Incident, error) {
	if !validName(id) {
		return nil, nil
	}
	found, err := eng.ContainerInspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case found.State == nil || found.Config == nil || !isSandbox(found.Name, found.Config.Labels):
		return nil, nil
	}
	var list []primitives.Incident
	add := func(at, message string, outOfMemory bool) {
		when, err := time.Parse(time.RFC3339Nano, at)
		if err == nil && !when.IsZero() {
			list = append(list, primitives.Incident{Time: when.UTC(), Message: message, OutOfMemory: outOfMemory})
		}
	}
	add(found.Created, "made from the image "+found.Config.Image, false)
	add(found.State.StartedAt, "started", false)
	if s := found.State; !s.Running {
		if s.OOMKilled {
			add(s.FinishedAt, usedUp, true)
		}
		add(s.FinishedAt, endedWith(strconv.Itoa(s.ExitCode)), false)
	}
	return list, nil
}

// pastEvents returns the events of a container that the engine remembers, oldest first. Without
// actions it returns those of every action. With an error it may return some events, too.
func pastEvents(ctx context.Context, eng *client.Client, id string, actions ...events.Action) ([]events.Message, error) {
	filter := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("container", id))
	for _, action := range actions {
		filter.Add("event", string(action))
	}
	// The engine compares Until with its own clock, which may differ much from this machine's: it
	// waits for a time in the future, and leaves out the latest events for a time in the past. For
	// Docker's engine 0 means now.
	list, err := eventsUntil(ctx, eng, filter, "0")
	if err != nil || len(list) > 0 {
		return list, err
	}
	// The engine has forgotten the container, or takes 0 for the year 1970. To ask for its time in
	// every case would take longer than the events do.
	info, err := eng.Info(ctx)
	if err != nil || info.SystemTime == "" {
		return nil, err
	}
	return eventsUntil(ctx, eng, filter, info.SystemTime)
}

// eventsUntil returns the events until a time that has passed.
func eventsUntil(ctx context.Context, eng *client.Client, filter filters.Args, until string) ([]events.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, failed := eng.Events(ctx, events.ListOptions{Until: until, Filters: filter})
	var list []events.Message
	for {
		select {
		case m := <-messages:
			list = append(list, m)
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return list, err
		}
	}
}

// incident returns a description of an event.
func incident(m events.Message) string {
	if marksEnd(m) {
		return "terminated by a program of agentenv"
	}
	get := func(key string) string { return m.Actor.Attributes[key] }
	switch m.Action {
	case events.ActionCreate:
		return "made from the image " + get("image")
	case events.ActionStart:
		return "started"
	case events.ActionOOM:
		return usedUp
	case events.ActionKill:
		return "signal " + get("signal")
	case events.ActionPause:
		return "paused"
	case events.ActionUnPause:
		return "resumed"
	case events.ActionRename:
		return "renamed to " + get("name")
	case events.ActionDestroy:
		return "removed"
	}
	return endedWith(get("exitCode"))
}

const usedUp = "a process was killed: the container has used up its memory"

// endedWith describes the end of a container with an exit code.
func endedWith(code string) string {
	if n, err := strconv.Atoi(code); err == nil && n > 128 {
		code += fmt.Sprintf(" (signal %d)", n-128)
	}
	return "ended with status " + code
}
