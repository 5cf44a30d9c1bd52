package testmodal

import (
	"fmt"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// openTunnels returns the addresses of a sandbox's ports. Unencrypted ports work, because the
// sandbox shares this machine's network. The host names of encrypted ports do not resolve.
func openTunnels(ports []*pb.PortSpec) map[uint32]*pb.TunnelData {
	all := map[uint32]*pb.TunnelData{}
	for i, spec := range ports {
		host := fmt.Sprintf("ta-%s-%d.test.modal.host", newID("tu"), i)
		data := pb.TunnelData_builder{Host: host, Port: 443, ContainerPort: spec.GetPort()}
		if spec.GetUnencrypted() {
			port := spec.GetPort()
			data.UnencryptedHost, data.UnencryptedPort = &host, &port
		}
		all[spec.GetPort()] = data.Build()
	}
	return all
}

// tunnelData returns the tunnels in the protocol's format.
func (sb *sandbox) tunnelData(encryptedOnly bool) []*pb.TunnelData {
	var all []*pb.TunnelData
	for _, data := range sb.tunnels {
		if !encryptedOnly || !data.HasUnencryptedHost() {
			all = append(all, data)
		}
	}
	return all
}
