package docker

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
)

// List returns the sandboxes of the engine, of all owners and also orphans, oldest first. It does
// not attach to them.
func (p Provider) List(ctx context.Context) ([]primitives.Info, error) {
	var list []primitives.Info
	err := p.ask("list", func(eng *client.Client) error {
		found, err := listContainers(ctx, eng)
		for _, c := range found {
			if info, ok := describeContainer(c); ok {
				list = append(list, info)
			}
		}
		return err
	})
	slices.SortFunc(list, func(a, b primitives.Info) int { return a.Created.Compare(b.Created) })
	return list, err
}

// listContainers returns the containers that were made as sandboxes. Other containers may have the
// labels, because their image is a snapshot of a sandbox, but have another name.
func listContainers(ctx context.Context, eng *client.Client) ([]container.Summary, error) {
	found, err := eng.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelSandbox))})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(c container.Summary) bool {
		return !slices.ContainsFunc(c.Names, func(name string) bool { return isSandbox(name, c.Labels) })
	}), nil
}

// isSandbox reports whether a container with this name and these labels was made
// as a sandbox.
func isSandbox(name string, labels map[string]string) bool {
	id := labels[labelSandbox]
	return id != "" && strings.TrimPrefix(name, "/") == id
}

// describeContainer returns the Info of a container, or false while it is being made or removed.
func describeContainer(c container.Summary) (primitives.Info, bool) {
	by := findOwner(c.Labels)
	kept, until := keptUntil(c.Labels)
	info := primitives.Info{
		ID: c.Labels[labelSandbox], Image: c.Image, Created: time.Unix(c.Created, 0).UTC(),
		Owned: by == owner.Alive, Kept: kept, Orphan: by == owner.Dead && (!kept || !until.IsZero() && time.Now().After(until)),
		Expires: until, Session: c.Labels[labelSession],
		Owner: c.Labels[labelHost] + ":" + c.Labels[labelPID],
	}
	info.GuestVersion, _ = strconv.Atoi(c.Labels[labelGuest]) // zero means unknown
	switch c.State {
	case container.StateRemoving:
		return info, false
	case container.StateCreated:
		info.Status = primitives.StatusLost
		return info, !info.Owned // else it is being made
	case container.StatePaused:
		info.Status = primitives.StatusPaused
	case container.StateExited:
		info.Status = primitives.StatusExited
	case container.StateDead:
		info.Status = primitives.StatusLost
	default:
		info.Status = primitives.StatusRunning
	}
	return info, true
}
