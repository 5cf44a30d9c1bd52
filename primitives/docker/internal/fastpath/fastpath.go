// Package fastpath implements shortcuts for an engine on this machine, whose containers run on this
// kernel: their guest can move to a Unix socket, see [guest.Socket], in a folder that the container
// shares with its host, and the runner can be mounted instead of copied.
//
// Each container has its own folder, which it can only read: so nothing in the container can make
// the host follow a path. A socket is in the folder only while a guest is expected. Engines are
// named by their address.
package fastpath

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Listener is a socket at which a guest is expected to connect. The zero value has no socket.
type Listener struct {
	Socket *guest.Socket // nil if no guest is expected
	folder *os.File      // the folder of the socket
}

// Close closes the folder. Call it when the guest has answered.
func (l Listener) Close() {
	if l.folder != nil {
		_ = l.folder.Close() // nothing was written
	}
}

// Runner returns the path of the runner that the engine at an address can mount into containers, or
// "" if the runner must be copied. A mounted runner is not sent to the engine, and all guests share
// one copy of it in memory. Only trying shows whether the engine sees the same files.
func Runner(engine, runner string) string {
	if !strings.HasPrefix(engine, "unix://") || runner == "" {
		return ""
	}
	file, err := filepath.Abs(runner)
	if err != nil {
		return ""
	}
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return ""
	}
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o555 != 0o555 || !executableThere(file) {
		return "" // some users of a container could not execute it
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		return "" // the file would need another label
	}
	return file
}
