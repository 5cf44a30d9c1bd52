package testdocker

import (
	_ "embed" // what the Node image is made of
	"net"
	"testing"

	"github.com/docker/docker/api/types/network"
)

//go:embed node.sh
var nodeScript []byte

//go:embed node/package-lock.json
var nodeLock []byte

// Node returns the name of an image like node:22-bookworm-slim: [Debian] with Node and npm. The
// set-up builds it.
func Node(t testing.TB) string {
	t.Helper()
	ref := reference("node", []byte(Debian(t)), nodeScript, nodeLock)
	if _, err := Engine(t).ImageInspect(t.Context(), ref); err != nil {
		t.Fatalf("%s: the image %s: %v", instruction, ref, err)
	}
	return ref
}

// FakeNPM is a shell command that adds fake package managers to [Busybox], so that agents can
// be installed without a network: its npm creates a program "claude" that prints npm's
// arguments.
const FakeNPM = `printf '#!/bin/sh\n' >/bin/apt-get && busybox cp /bin/apt-get /bin/dpkg-query && \
  printf '#!/bin/sh\ncase "$*" in *--version) exit;; esac\nprintf "#!/bin/sh\\necho $*\\n" >/bin/claude; busybox chmod +x /bin/claude\n' >/bin/npm && \
  busybox chmod +x /bin/apt-get /bin/dpkg-query /bin/npm`

// Gateway returns the address of this machine in the engine's default network. Containers can
// reach a server that listens there. The address is the bridge's: an engine that has just
// created the network does not report its gateway before the next start.
func Gateway(t testing.TB) string {
	t.Helper()
	bridge, err := Engine(t).NetworkInspect(t.Context(), "bridge", network.InspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	device, err := net.InterfaceByName(bridge.Options["com.docker.network.bridge.name"])
	if err != nil {
		t.Fatalf("the bridge of the engine's default network: %v", err)
	}
	addrs, err := device.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if ip, _, err := net.ParseCIDR(addr.String()); err == nil && ip.To4() != nil {
			return ip.String()
		}
	}
	t.Fatalf("the engine's default network has no gateway: %v", addrs)
	return ""
}
