package primitives

import "context"

// Port is a port of a sandbox that can be reached from outside.
type Port struct {
	// Number is the port that a program in the sandbox listens on.
	Number int `json:"number"`
	// Protocol is "tcp" or "udp".
	Protocol string `json:"protocol"`
	// Address is where it can be reached: "host:port", or a URL such as
	// "https://name.example" where only HTTP gets through.
	Address string `json:"address"`
}

// PortLister is implemented by primitives whose sandboxes can publish ports. Which ports
// are published is in Spec.Ports.
type PortLister interface {
	// Ports returns the published ports, by their number; none is no error.
	Ports(ctx context.Context) ([]Port, error)
}
