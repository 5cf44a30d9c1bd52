package docker

import (
	"context"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Info describes a sandbox that [List] found.
type Info struct {
	ID      string
	Image   string
	Created time.Time
	Status  primitives.Status
	// Owned says that the program that made it still runs on this machine.
	Owned bool
}

// List returns the sandboxes of the engine, whoever made them, oldest first. Of
// cfg only Host counts. It does not attach to them.
func List(ctx context.Context, cfg Config) (_ []Info, err error) {
	eng, err := connect(cfg.Host)
	if err != nil {
		return nil, wrap("list", "", err)
	}
	defer func() { _ = eng.Close() }() // nothing was written
	found, err := eng.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelSandbox))})
	if err != nil {
		return nil, wrap("list", "", explain(eng, err))
	}
	list := make([]Info, 0, len(found))
	for _, c := range found {
		info := Info{
			ID: c.Labels[labelSandbox], Image: c.Image, Created: time.Unix(c.Created, 0).UTC(),
			Status: primitives.StatusExited, Owned: ownerLives(c.Labels),
		}
		switch c.State {
		case container.StateRunning, container.StatePaused:
			info.Status = primitives.StatusRunning
		case container.StateRemoving, container.StateDead:
			continue
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b Info) int { return a.Created.Compare(b.Created) })
	return list, nil
}
