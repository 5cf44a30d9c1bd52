package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Index knows the last state of a workspace, so that the next Take reads only files that have changed since. The zero
// value knows nothing. It must be used by one goroutine at a time, and for one sandbox only. A copy of it may be used
// separately.
type Index struct {
	state State
	files []tracked           // sorted by path
	dirs  map[string]Digest   // the listings
	blobs map[Digest]struct{} // of the state, without listings
	// unclaimed is what was stored since the last Claim.
	unclaimed int64
	expects   bool // see Expect
	refused   refusal
}

// refusal is a Take that reached a limit. As long as all files are still as they were, the next one need not try.
type refusal struct {
	files map[string]string // revisions by path
	opts  Options
	err   error // nil for none
}

func (r *refusal) still(infos []primitives.FileInfo, opts Options) bool {
	if r.err == nil || opts.Limit != r.opts.Limit || r.opts.Room > 0 && (opts.Room == 0 || opts.Room > r.opts.Room) {
		return false
	}
	same := 0
	for _, info := range infos {
		if rev, ok := r.files[info.Path]; ok && rev == info.Revision {
			same++
		}
	}
	return same == len(r.files)
}

func revisionsOf(infos []primitives.FileInfo) map[string]string {
	files := make(map[string]string)
	for _, info := range infos {
		if info.Mode.IsRegular() {
			files[info.Path] = info.Revision
		}
	}
	return files
}

// tracked is a file, link or folder as of the last Take. The revision is empty if the content is known from an archive
// that was unpacked.
type tracked struct {
	info   primitives.FileInfo
	size   int64 // that was read
	digest Digest
	pieces []piece // of a large file
	lost   bool    // it could not be read
	again  bool    // it may have changed while it was read
}

// Options say what Take reads. The zero value means everything.
type Options struct {
	// Limit is how many bytes of content the state may have, without holes of large files. Zero means no limit.
	Limit int64
	// Room is how many bytes of content may be stored that the state before does not have. Zero means no limit.
	Room int64
	// Skip reports whether to leave out a path. What is below a folder that is left out is left out, too.
	Skip func(path string) bool
	// NoContents stores the listings alone, which are all that Compare needs, and the .gitignore files.
	NoContents bool
}

// Take stores the state of a workspace. A file that changes while it is read is read again; if it changes each time, it
// is stored with one of its contents, or a mix, and State.Unsteady names it.
func (x *Index) Take(ctx context.Context, from Source, blobs Blobs, opts Options) (State, error) {
	l := &lister{files: from.Files(), skip: opts.Skip}
	infos, err := l.list(ctx)
	if err != nil {
		return State{}, err
	}
	t := &taking{index: x, from: from, blobs: blobs, opts: opts}
	if l.denied != "" {
		t.state.Unreadable = named(nil, l.denied)
	}
	t.plan(infos)
	if err := t.measure(); err != nil {
		return State{}, err
	}
	if len(t.changed) == 0 && len(t.dirty) == 0 && x.state.Root != "" {
		st := x.state
		st.Read = 0
		return st, nil
	}
	if x.refused.still(infos, opts) {
		return State{}, x.refused.err
	}
	t.known = x.blobs
	t.put = make(map[Digest]struct{})
	if err := t.readAll(ctx); err != nil {
		if errors.Is(err, primitives.ErrLimit) {
			x.refused = refusal{files: revisionsOf(infos), opts: opts, err: err}
		}
		x.unclaimed += t.stored
		return State{}, err
	}
	t.files = slices.DeleteFunc(t.files, func(f tracked) bool { return f.info.Path == "" })
	if err := t.list(ctx); err != nil {
		return State{}, err
	}
	*x = Index{state: t.state, files: t.files, dirs: t.dirs, blobs: t.held(), unclaimed: x.unclaimed + t.stored}
	return t.state, nil
}

// Spare removes from garbage what the index knows to be stored, and will not store again.
func (x *Index) Spare(garbage Sizes) {
	for d := range x.blobs {
		delete(garbage, d)
	}
	for _, d := range x.dirs {
		delete(garbage, d)
	}
}

// Claim returns how many bytes were stored since the last Claim that states before did not have.
func (x *Index) Claim() int64 {
	n := x.unclaimed
	x.unclaimed = 0
	return n
}

// taking is one Take.
type taking struct {
	index    *Index
	from     Source
	blobs    Blobs
	opts     Options
	files    []tracked           // sorted by path; those without a path are gone
	changed  []int               // of files: to be read
	unsteady []int               // those that changed while they were read
	dirty    map[string]bool     // folders whose listing changes
	dirs     map[string]Digest   // listings
	known    map[Digest]struct{} // blobs that the state before has
	put      map[Digest]struct{} // blobs that this one adds
	cut      cutter
	state    State
	stored   int64
	trial    bool // nothing is stored
}

// plan compares the listing with the last one.
func (t *taking) plan(infos []primitives.FileInfo) {
	t.files, t.dirty = make([]tracked, len(infos)), make(map[string]bool)
	old := t.index.files
	for i, info := range infos {
		for len(old) > 0 && old[0].info.Path < info.Path {
			t.touch(old[0].info)
			old = old[1:]
		}
		t.files[i].info = info
		if len(old) == 0 || old[0].info.Path != info.Path {
			t.touch(info)
			t.read(i)
			continue
		}
		was := old[0]
		old = old[1:]
		switch {
		case was.info != info && !was.learned(info):
			t.touch(info)
			t.read(i)
		case was.lost || was.again:
			t.touch(info)
			t.read(i)
		default:
			if was.info != info || t.index.state.Root == "" { // nothing is listed yet
				t.touch(info)
			}
			was.info = info
			t.files[i] = was
		}
	}
	for _, gone := range old {
		t.touch(gone.info)
	}
	if t.index.state.Root == "" {
		t.dirty["."] = true
	}
}

// measure returns an error for a workspace beyond [Limit]: reading a hole takes time, too, and so does writing it.
func (t *taking) measure() error {
	meter := Limit.Meter()
	for i := range t.files {
		info := t.files[i].info
		if err := meter(&tar.Header{Name: info.Path, Size: info.Size}); err != nil {
			return err
		}
	}
	return nil
}

// learned reports whether the file has the content that was unpacked.
func (f *tracked) learned(info primitives.FileInfo) bool {
	return f.info.Revision == "" && f.digest != "" && info.Mode.IsRegular() && info.Size == f.size && info.ModTime.Equal(f.info.ModTime)
}

// read remembers that a file must be read.
func (t *taking) read(i int) {
	if t.files[i].info.Mode.IsRegular() {
		t.changed = append(t.changed, i)
	}
}

// touch marks a file as changed, which changes the listings of the folders that it is in.
func (t *taking) touch(info primitives.FileInfo) {
	if info.IsDir() {
		t.dirty[info.Path] = true
	}
	for dir := path.Dir(info.Path); !t.dirty[dir]; dir = path.Dir(dir) {
		t.dirty[dir] = true
	}
}

// rounds is how often files that change meanwhile are read.
const rounds = 3

// readAll stores the contents of the changed files.
func (t *taking) readAll(ctx context.Context) error {
	if t.mayNotFit() {
		if err := t.tryOut(ctx); err != nil {
			return err
		}
	}
	for n := range rounds {
		t.unsteady = nil
		if err := t.store(ctx); err != nil {
			return err
		}
		t.changed = t.unsteady
		for _, i := range t.changed {
			f := &t.files[i]
			if n < rounds-1 {
				f.size, f.pieces = 0, nil // they are read again
			}
		}
		if len(t.changed) == 0 {
			return nil
		}
	}
	for _, i := range t.changed {
		t.files[i].again = true
		t.state.Unsteady = named(t.state.Unsteady, t.files[i].info.Path)
	}
	return nil
}

// mayNotFit reports whether the state may be beyond a limit: holes, and contents that are stored, do not count.
func (t *taking) mayNotFit() bool {
	var all, changed int64
	for i := range t.files {
		all += t.files[i].info.Size
	}
	for _, i := range t.changed {
		changed += t.files[i].info.Size
	}
	return t.opts.Limit > 0 && all > t.opts.Limit || t.opts.Room > 0 && changed > t.opts.Room
}

// tryOut reads all changed files without storing anything, so that what does not fit leaves nothing behind.
func (t *taking) tryOut(ctx context.Context) error {
	t.trial = true
	err := t.store(ctx)
	for _, i := range t.changed {
		f := &t.files[i]
		f.digest, f.size, f.pieces = "", 0, nil
	}
	t.trial, t.stored, t.state.Read = false, 0, 0
	clear(t.put)
	return err
}

// store reads the changed files and puts their contents into the store.
func (t *taking) store(ctx context.Context) error {
	var all int64
	if t.opts.Limit > 0 {
		for i := range t.files {
			all += t.files[i].data()
		}
	}
	var failed error
	var want []Digest
	var name string // of the file that is read
	digests, err := t.blobs.PutBlobs(ctx, func(yield func(io.Reader, error) bool) {
		stop := errors.New("the store takes no more")
		emit := func(d Digest, data []byte) error {
			if t.isKnown(d) || t.opts.NoContents && path.Base(name) != gitignore {
				return nil
			}
			if t.stored += int64(len(data)); t.opts.Room > 0 && t.stored > t.opts.Room {
				failed = fmt.Errorf("%w: the workspace has more than %d bytes of new content, for which the session has no room; the most of it is in %q, which checkpoints.ignore can leave out",
					primitives.ErrLimit, t.opts.Room, t.largest())
				return failed
			}
			t.put[d] = struct{}{}
			if t.trial {
				return nil
			}
			want = append(want, d)
			if !yield(bytes.NewReader(data), nil) {
				return stop
			}
			return nil
		}
		for i, r := range t.contents(ctx, &failed) {
			f := &t.files[i]
			name = f.info.Path
			digest, pieces, size, err := t.cut.cut(r, emit)
			if errors.Is(err, stop) {
				return
			}
			if failed != nil {
				break
			}
			if err != nil {
				continue // contents tries again or sets failed
			}
			f.digest, f.pieces, f.size, f.lost = digest, pieces, size, false
			t.state.Read++
			if all += f.data(); t.opts.Limit > 0 && all > t.opts.Limit {
				failed = fmt.Errorf("%w: the workspace has more than %d bytes of content, the most of it in %q", primitives.ErrLimit, t.opts.Limit, t.largest())
			}
			if failed != nil {
				break
			}
		}
		if failed != nil {
			yield(nil, failed)
		}
	})
	if err != nil {
		return err
	}
	if !slices.Equal(digests, want) {
		return fmt.Errorf("the store returned %d digests for %d blobs, or others", len(digests), len(want))
	}
	return nil
}

func (t *taking) isKnown(d Digest) bool {
	_, before := t.known[d]
	_, now := t.put[d]
	return before || now
}

// data is the size of a file without the holes of a large one.
func (f *tracked) data() int64 {
	if f.pieces == nil {
		return f.size
	}
	var n int64
	for _, p := range f.pieces {
		if p.digest != "" {
			n += p.size
		}
	}
	return n
}

// largest returns the folder or file at the top of the workspace that has the most content.
func (t *taking) largest() string {
	sums := make(map[string]int64)
	for i := range t.files {
		top, _, _ := strings.Cut(t.files[i].info.Path, "/")
		sums[top] += t.files[i].info.Size
	}
	most := ""
	for name, n := range sums {
		if n > sums[most] || n == sums[most] && name < most {
			most = name
		}
	}
	return most
}

func named(list []string, name string) []string {
	if len(list) < maxNamed {
		list = append(list, name)
	}
	return list
}

// held returns the blobs of the files of the state.
func (t *taking) held() map[Digest]struct{} {
	held := make(map[Digest]struct{}, len(t.files))
	for i := range t.files {
		t.files[i].hold(held)
	}
	return held
}

// hold adds the blobs of a file.
func (f *tracked) hold(held map[Digest]struct{}) {
	if f.digest == "" {
		return
	}
	held[f.digest] = struct{}{}
	for _, p := range f.pieces {
		if p.digest != "" {
			held[p.digest] = struct{}{}
		}
	}
}

// Tracker has the states of the workspace of one sandbox, and where they are stored.
type Tracker struct {
	Index
	Blobs Blobs
	Options
}

// ArchiveLimit bounds what Learn stores.
func (o Options) ArchiveLimit() archive.Limit {
	limit := archive.Limit{Bytes: o.Limit}
	if o.Room > 0 && (o.Limit == 0 || o.Room < o.Limit) {
		limit.Bytes = o.Room
	}
	return limit
}
