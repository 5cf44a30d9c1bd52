// Package relink changes symbolic links in a folder that is copied to another path. A link that leads
// into the folder by an absolute path leads into the copy instead. It is the one treatment of links
// when a session attaches to a new sandbox, rewinds, forks or moves.
package relink

import (
	"archive/tar"
	"errors"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
)

// Target returns the target of a link in the copy at the path to of the folder from. Both are clean
// absolute paths. Relative targets and those outside of the folder stay.
func Target(target, from, to string) string {
	rest, ok := strings.CutPrefix(target, from)
	if !ok || rest != "" && rest[0] != '/' {
		return target
	}
	return to + rest
}

// Tar copies a tar archive of the folder from, for a copy at the path to.
func Tar(w io.Writer, packed io.Reader, from, to string, limit archive.Limit) error {
	in, out := archive.NewReader(packed, limit), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			h.Linkname = Target(h.Linkname, from, to)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
