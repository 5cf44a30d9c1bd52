package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// Incident is something that happened to a container.
type Incident struct {
	Time    time.Time
	Message string // for people
}

// History returns what the engine remembers of a sandbox's container, oldest first:
// engines remember a few hundred events, also of containers that are gone. Of cfg
// only Host counts. A container that it does not remember is fs.ErrNotExist.
func History(ctx context.Context, cfg Config, id string) ([]Incident, error) {
	var list []Incident
	err := askAbout("history", id, cfg, func(eng *client.Client) error {
		var err error
		list, err = remembered(ctx, eng, id)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("%w: the engine remembers no such container", fs.ErrNotExist)
		}
		return err
	})
	return list, err
}

func remembered(ctx context.Context, eng *client.Client, id string) ([]Incident, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("container", id))
	for _, action := range []events.Action{
		events.ActionCreate, events.ActionStart, events.ActionOOM, events.ActionKill, events.ActionDie, events.ActionPause,
		events.ActionUnPause, events.ActionRename, events.ActionDestroy, endAction,
	} {
		filter.Add("event", string(action))
	}
	now := time.Now()
	messages, failed := eng.Events(ctx, events.ListOptions{
		Since:   "0",
		Until:   fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond()),
		Filters: filter,
	})
	var list []Incident
	for {
		select {
		case m := <-messages:
			list = append(list, Incident{time.Unix(0, m.TimeNano).UTC(), incident(m)})
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return list, err
		}
	}
}

// incident describes an event.
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
		return "a process was killed: the container has used up its memory"
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
	code := get("exitCode")
	if n, err := strconv.Atoi(code); err == nil && n > 128 {
		code += fmt.Sprintf(" (signal %d)", n-128)
	}
	return "ended with status " + code
}
