package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/nat"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

// Sandboxes without a Spec.Network share one network of this package, on which the engine drops
// packets from one container to another. Its interface on the engine's machine has a fixed name, so
// that firewall rules can name it, and so that the engine refuses a second such network.
const (
	networkName   = "agentenv"
	networkBridge = "agentenv0"
	labelNetwork  = labelPrefix + "network" // of the network: its name

	optionBridge = "com.docker.network.bridge.name"
	optionICC    = "com.docker.network.bridge.enable_icc"
)

// sandboxNetwork returns the ID of the network of sandboxes. It makes the network if the engine has
// none.
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

// findNetwork returns the ID of the network of sandboxes, or "" if there is none.
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

// networks removes the network of sandboxes if no container uses it. A new network stays, because
// another program may be about to use it; such a program makes a new one if the network is gone.
func (g *collector) networks(ctx context.Context) {
	found, err := listNetworks(ctx, g.eng)
	if err != nil {
		g.errs = append(g.errs, err)
	}
	for _, n := range found {
		why := "no container is left that uses it"
		if !g.opts.NoGrace {
			if why, err = g.unused(ctx, owner.Unknown, n.Created, why); err != nil {
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
				return fmt.Errorf("%w: %w", cerrdefs.ErrConflict, err) // it is in use again
			}
			return err
		})
	}
}

// Port is a port of the container that is published on the engine's machine.
type Port struct {
	// Container is the port that a program in the container listens on.
	Container int `json:"container"`
	// Protocol is "tcp" or "udp"; empty means "tcp".
	Protocol string `json:"protocol,omitempty"`
	// Host is the port on the engine's machine; zero means a free one.
	Host int `json:"host,omitempty"`
	// HostIP is the address on that machine. Empty means 127.0.0.1, which only that machine
	// reaches; "0.0.0.0" admits everyone who can reach the machine.
	HostIP string `json:"host_ip,omitempty"`
}

const loopback = "127.0.0.1"

// normal returns the port with defaults for all empty fields except Host.
func (p Port) normal() Port {
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	if p.HostIP == "" {
		p.HostIP = loopback
	}
	return p
}

// ports returns the ports of Spec.Ports and Publish.
func (c config) ports() []Port {
	ports := make([]Port, 0, len(c.Ports)+len(c.Publish))
	for _, number := range c.Ports {
		ports = append(ports, Port{Container: number})
	}
	return append(ports, c.Publish...)
}

// checkPorts refuses ports that cannot be published.
func (c config) checkPorts() error {
	if len(c.ports()) > 0 && c.Network == "none" {
		return c.invalid("ports", "the network none publishes no ports; choose another network, or leave the ports out")
	}
	seen := map[Port]bool{}
	for i, p := range c.ports() {
		p = p.normal()
		field := fmt.Sprintf("publish[%d]", i-len(c.Ports)) // Spec.Check checks the others
		switch {
		case p.Container < 1 || p.Container > 65535:
			return c.invalid(field+".container", fmt.Sprintf("%d is no port; give a number from 1 to 65535", p.Container))
		case p.Host < 0 || p.Host > 65535:
			return c.invalid(field+".host", fmt.Sprintf("%d is no port; give a number from 1 to 65535, or 0 for a free one", p.Host))
		case p.Protocol != "tcp" && p.Protocol != "udp":
			return c.invalid(field+".protocol", fmt.Sprintf("%q is no protocol; choose tcp or udp", p.Protocol))
		}
		if _, err := netip.ParseAddr(p.HostIP); err != nil {
			return c.invalid(field+".host_ip", fmt.Sprintf("%q is no IP address; give one of the engine's machine, such as 127.0.0.1", p.HostIP))
		}
		key := p
		if p.Host != 0 {
			key.Container = 0 // regardless of the container's port
		}
		if seen[key] {
			return c.invalid(field, "it is there twice; leave one out")
		}
		seen[key] = true
	}
	return nil
}

// portBindings returns the ports in the engine's form.
func (c config) portBindings() (nat.PortSet, nat.PortMap) {
	if len(c.ports()) == 0 {
		return nil, nil
	}
	exposed, bindings := nat.PortSet{}, nat.PortMap{}
	for _, p := range c.ports() {
		p = p.normal()
		inside := nat.Port(strconv.Itoa(p.Container) + "/" + p.Protocol)
		binding := nat.PortBinding{HostIP: p.HostIP}
		if p.Host != 0 {
			binding.HostPort = strconv.Itoa(p.Host)
		}
		exposed[inside] = struct{}{}
		bindings[inside] = append(bindings[inside], binding)
	}
	return exposed, bindings
}

// Ports returns the published ports, including the host ports that the engine has chosen.
func (d *driver) Ports(ctx context.Context) ([]primitives.Port, error) {
	found, err := d.eng.ContainerInspect(ctx, d.container)
	if err != nil {
		return nil, d.explain(ctx, err)
	}
	if found.NetworkSettings == nil {
		return nil, nil
	}
	var ports []primitives.Port
	for inside, bindings := range found.NetworkSettings.Ports {
		for _, b := range bindings {
			ports = append(ports, primitives.Port{Number: inside.Int(), Protocol: inside.Proto(), Address: net.JoinHostPort(b.HostIP, b.HostPort)})
		}
	}
	slices.SortFunc(ports, func(a, b primitives.Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Address, b.Address))
	})
	return ports, nil
}
