package archive

import (
	"archive/tar"
	"errors"
	"io"

	"github.com/agentenv-dev/agentenv/internal/relink"
)

// Relink copies an archive of the folder from, for a copy at the path to; see package relink.
func Relink(w io.Writer, packed io.Reader, from, to string, limit Limit) error {
	in, out := NewReader(packed, limit), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			h.Linkname = relink.Target(h.Linkname, from, to)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
