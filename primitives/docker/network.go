package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

// Sandboxes without a Spec.Network share one network of this package, on which the
// engine drops what one container sends to another. Its interface on the engine's
// machine has a fixed name, so that firewall rules can name it, and so that the
// engine refuses a second such network.
const (
	networkName   = "agentenv"
	networkBridge = "agentenv0"
	labelNetwork  = labelPrefix + "network" // of the network: its name

	optionBridge = "com.docker.network.bridge.name"
	optionICC    = "com.docker.network.bridge.enable_icc"
)

// sandboxNetwork returns the ID of the network of sandboxes, which it makes if the
// engine has none.
func sandboxNetwork(ctx context.Context, eng *client.Client) (string, error) {
	tick := time.NewTicker(stateInterval)
	defer tick.Stop()
	for attempt := 1; ; attempt++ {
		id, err := findNetwork(ctx, eng)
		if id == "" && err == nil {
			id, err = makeNetwork(ctx, eng)
		}
		switch {
		case err == nil:
			return id, nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		case !isTaken(err):
			return "", err
		case attempt == stateAttempts:
			return "", fmt.Errorf("%w: network: %w; remove the network %s or the one whose bridge is %s, or set bridge, on which sandboxes reach each other",
				fs.ErrExist, err, networkName, networkBridge)
		}
		// Another program makes the network at this moment.
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// findNetwork returns the ID of the network of sandboxes; empty if there is none.
func findNetwork(ctx context.Context, eng *client.Client) (string, error) {
	found, err := listNetworks(ctx, eng)
	if err != nil {
		return "", err
	}
	for _, n := range found {
		if n.Driver == "bridge" && n.Options[optionICC] == "false" {
			return n.ID, nil
		}
	}
	return "", nil
}

func listNetworks(ctx context.Context, eng *client.Client) ([]network.Summary, error) {
	return eng.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelNetwork+"="+networkName))})
}

func makeNetwork(ctx context.Context, eng *client.Client) (string, error) {
	made, err := eng.NetworkCreate(ctx, networkName, network.CreateOptions{
		Driver:  "bridge",
		Options: map[string]string{optionICC: "false", optionBridge: networkBridge},
		Labels:  map[string]string{labelNetwork: networkName},
	})
	if err != nil && ctx.Err() == nil && !isTaken(err) && !client.IsErrConnectionFailed(err) && !engine.ConnectionFailed(err) && !errors.Is(err, engine.ErrSilent) {
		return "", fmt.Errorf("network: %w; set it to none, or to bridge, on which sandboxes reach each other", err)
	}
	return made.ID, err
}

// isTaken reports whether the engine has a network with the same name or bridge.
func isTaken(err error) bool {
	return cerrdefs.IsConflict(err) || cerrdefs.IsPermissionDenied(err) && strings.Contains(err.Error(), "conflicts with network")
}

// missesNetwork reports whether a container could not be started because its network
// does not exist.
func missesNetwork(err error) bool {
	return cerrdefs.IsNotFound(err) && strings.Contains(err.Error(), "network ")
}

// networks removes the network of sandboxes if no container is left on it, unless it
// is new: another program may be about to use it, and makes another one then.
func (g *collector) networks(ctx context.Context) {
	found, err := listNetworks(ctx, g.eng)
	if err != nil {
		g.errs = append(g.errs, err)
	}
	for _, n := range found {
		why := "no container is left that uses it"
		if !g.opts.NoGrace {
			if why, err = g.unused(ctx, ownerUnknown, n.Created, why); err != nil {
				g.errs = append(g.errs, err)
			}
		}
		if why == "" || ctx.Err() != nil {
			continue
		}
		using, err := g.eng.ContainerList(ctx, container.ListOptions{All: true, Limit: 1, Filters: filters.NewArgs(filters.Arg("network", n.ID))})
		if err != nil {
			g.errs = append(g.errs, err)
		}
		if err != nil || len(using) > 0 {
			continue
		}
		g.take(primitives.Garbage{Kind: "network", ID: n.Name, Why: why, Created: n.Created.UTC()}, func() error {
			err := g.eng.NetworkRemove(ctx, n.ID)
			if cerrdefs.IsPermissionDenied(err) {
				return fmt.Errorf("%w: %w", cerrdefs.ErrConflict, err) // a container has just got it
			}
			return err
		})
	}
}
