package workspace

import (
	"context"
)

// Sizes are blobs with their sizes in bytes.
type Sizes map[Digest]int64

// Has reports whether a blob is one of them.
func (s Sizes) Has(d Digest) bool {
	_, ok := s[d]
	return ok
}

// Reach adds all blobs of a state to found, without those of the states in except. It does not read
// directories that are in one of the two, which must have all blobs of these.
func Reach(ctx context.Context, blobs Blobs, root Digest, except, found Sizes) error {
	r := reaching{blobs: blobs, except: except, found: found}
	return r.dir(ctx, root, 0)
}

type reaching struct {
	blobs         Blobs
	except, found Sizes
}

func (r *reaching) dir(ctx context.Context, d Digest, depth int) error {
	if r.except.Has(d) || r.found.Has(d) {
		return nil
	}
	if depth > maxDepth {
		return errTooDeep
	}
	entries, err := list(ctx, r.blobs, d)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case e.isLink():
		case e.isDir():
			if err := r.dir(ctx, e.digest, depth+1); err != nil {
				return err
			}
		case r.except.Has(e.digest) || r.found.Has(e.digest):
		case e.pieces:
			if err := r.pieces(ctx, e); err != nil {
				return err
			}
		default:
			r.found[e.digest] = e.Size
		}
	}
	r.found[d] = int64(len(encode(entries))) // last: found has all blobs of a directory in it
	return nil
}

// pieces adds the blobs of a large file.
func (r *reaching) pieces(ctx context.Context, e Entry) error {
	pieces, err := piecesOf(ctx, r.blobs, e)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if p.digest != "" && !r.except.Has(p.digest) {
			r.found[p.digest] = p.size
		}
	}
	r.found[e.digest] = int64(len(encodePieces(pieces)))
	return nil
}
