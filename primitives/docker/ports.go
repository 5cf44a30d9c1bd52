package docker

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-connections/nat"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Port is a port of the container that can be reached on the engine's machine.
type Port struct {
	// Container is the port that a program in the container listens on.
	Container int `json:"container"`
	// Protocol is "tcp", also if it is empty, or "udp".
	Protocol string `json:"protocol,omitempty"`
	// Host is the port on the engine's machine; zero means a free one.
	Host int `json:"host,omitempty"`
	// HostIP is the address there. Empty means 127.0.0.1, which only that machine
	// reaches; "0.0.0.0" lets everybody in who reaches the machine.
	HostIP string `json:"host_ip,omitempty"`
}

const loopback = "127.0.0.1"

// normal returns the port with nothing left empty but Host.
func (p Port) normal() Port {
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	if p.HostIP == "" {
		p.HostIP = loopback
	}
	return p
}

// ports returns the ports of the specification and those with addresses of their own.
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
		field := fmt.Sprintf("publish[%d]", i-len(c.Ports)) // Spec.Check knows the others
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
			key.Container = 0 // whatever it leads to
		}
		if seen[key] {
			return c.invalid(field, "it is there twice; leave one out")
		}
		seen[key] = true
	}
	return nil
}

// portBindings are the ports in the engine's words.
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

// Ports returns the published ports, with those that the engine has chosen.
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
