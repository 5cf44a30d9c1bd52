package docker

import (
	"context"
	"errors"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Remove ends a sandbox of [Provider.Create] by its ID and removes it with its files, whoever
// made it and in whatever state it is. Its processes are ended politely if its guest
// answers soon; else the engine does it alone.
//
// An ID without a sandbox is fs.ErrNotExist, also when it is a container that
// this package did not make.
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

// discard removes a container without asking the guest, and what goes with it.
func discard(ctx context.Context, eng *client.Client, found container.InspectResponse) error {
	markEnd(ctx, eng, found.ID)
	err := errors.Join(removeContainer(ctx, eng, found.ID), fastpath.Remove(eng.DaemonHost(), found.Config.Labels[labelSandbox]))
	if err == nil && found.Config.Labels[labelFork] != "" {
		err = dropForks(ctx, eng, found.Image)
	}
	return err
}
