//go:build !linux

package guest

import (
	"errors"
	"net"
	"os"
)

const maxRights = 2

// rights cannot pass descriptors on this system; see rights_linux.go.
type rights struct{ *net.UnixConn }

func newRights(*net.UnixConn) *rights { return nil }

// canPass reports whether this system can pass descriptors.
const canPass = false

func (r *rights) take() []*os.File { return nil }

func (r *rights) writeWith(p []byte, _ []*os.File) (int, error) { return r.Write(p) }

func newPipe(bool) (kept, passed *os.File, err error) { return nil, nil, errors.ErrUnsupported }

func growPipe(*os.File, int) {}
