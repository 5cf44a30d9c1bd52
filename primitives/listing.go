package primitives

import (
	"fmt"
	"unsafe"
)

// MaxListing is how many bytes of memory the entries that List returns take at
// most: 64 MiB, which is some 400,000 files with short names.
const MaxListing = 64 << 20

// Listing collects the entries of List within its bounds. Implementations of
// [Files] use it, so that all have the same bounds; those that receive the entries from a
// sandbox, so that the sandbox cannot exceed them.
// The zero value is bounded by [MaxListing] only.
type Listing struct {
	// Limit is ListOptions.Limit.
	Limit int
	// Infos are the entries so far.
	Infos []FileInfo

	size int
}

// Add adds an entry. One that does not fit is [ErrLimit], and is not added.
func (l *Listing) Add(info FileInfo) error {
	if l.Limit > 0 && len(l.Infos) >= l.Limit {
		return fmt.Errorf("%w: the folder has more than %d entries", ErrLimit, l.Limit)
	}
	size := l.size + int(unsafe.Sizeof(info)) + len(info.Path) + len(info.Target) + len(info.Revision)
	if size > MaxListing {
		return fmt.Errorf("%w: the entries take more than %d MiB of memory; set a Limit, a Pattern or a smaller Depth, or list a folder in it",
			ErrLimit, MaxListing>>20)
	}
	l.size = size
	l.Infos = append(l.Infos, info)
	return nil
}
