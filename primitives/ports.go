package primitives

import "context"

// Port is a port of a sandbox that can be reached from outside.
type Port struct {
	// Number is the port that a program in the sandbox listens on.
	Number int `json:"number"`
	// Protocol is "tcp" or "udp".
	Protocol string `json:"protocol"`
	// Address is where clients reach the port: "host:port", or a URL such as
	// "https://name.example" if only HTTP gets through.
	Address string `json:"address"`
}

// PortLister is implemented by primitives whose sandboxes can publish ports. Spec.Ports selects
// the ports to publish.
type PortLister interface {
	// Ports returns the published ports, sorted by number. Having none is not an error.
	Ports(ctx context.Context) ([]Port, error)
}
