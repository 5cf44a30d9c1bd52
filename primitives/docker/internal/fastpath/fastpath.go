// Package fastpath knows what an engine on this machine, and so on this kernel, spares its
// containers: their guest can move to a Unix socket, see [guest.Socket], in a folder that
// the container shares with its host, and the runner can be mounted instead of copied.
//
// There is a folder for each container, which the container can only read: nothing that it
// does makes the host follow a path. A socket is in the folder only while a guest is
// expected. Engines are named by their address.
package fastpath

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Listener is where a guest is expected. The zero value is nowhere.
type Listener struct {
	Socket *guest.Socket // nil if no guest is expected
	folder *os.File      // that the socket is in
}

// Close is for when the guest has answered.
func (l Listener) Close() {
	if l.folder != nil {
		_ = l.folder.Close() // it was only looked at
	}
}

// Runner returns the path of the runner that the engine at an address can mount into
// containers; empty if the runner must be copied. An engine that mounts the file need not
// be sent it, and all guests have one copy of their program in memory. Whether the engine
// sees the same files is found out by trying.
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
		return "" // not for every user of a container
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		return "" // it would have to get another label
	}
	return file
}
