package primitives

import (
	"fmt"
	"unsafe"
)

// MaxListing is the maximum memory, in bytes, of the entries that List returns: 64 MiB, which
// is some 400,000 files with short names.
const MaxListing = 64 << 20

// Listing collects the entries of List within its limits. All implementations of [Files] use it
// so that they have the same limits. A host that receives the entries from a sandbox uses it so
// that the sandbox cannot exceed them. The zero value is limited by [MaxListing] only.
type Listing struct {
	// Limit is ListOptions.Limit.
	Limit int
	// Infos are the entries added.
	Infos []FileInfo

	size int
}

// Add adds an entry. If the entry does not fit, Add returns [ErrLimit] and does not add it.
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
