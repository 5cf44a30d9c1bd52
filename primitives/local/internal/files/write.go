package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/sparse"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// defaultMode is the mode of a new file.
const defaultMode fs.FileMode = 0o644

// WriteFile implements primitives.Files. A new file has holes where the content is zero.
//
// Of two writes by this FS with the same IfRevision only one succeeds. A write by a program in the
// sandbox between the last check and the rename is not detected. Exclusive has no such gap.
func (f *FS) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return f.WriteFileAt(ctx, name, r, opts, time.Time{})
}

// WriteFileAt is WriteFile that also sets the modification time, unless it is zero.
func (f *FS) WriteFileAt(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions, modTime time.Time) error {
	end, err := f.beginWrite()
	if err != nil {
		return f.fail("write", name, err)
	}
	defer end()
	src, release := f.source(ctx, r)
	defer release()
	return f.fail("write", name, f.writeDated(ctx, name, src, opts, modTime))
}

func (f *FS) writeFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return f.writeDated(ctx, name, r, opts, time.Time{})
}

func (f *FS) writeDated(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions, modTime time.Time) error {
	if err := f.begin(ctx, name); err != nil {
		return err
	}
	if err := checkWrite(opts); err != nil {
		return err
	}
	t, err := f.tree(name)
	if err != nil {
		return err
	}
	defer t.close()
	p, st, err := t.follow(name, true)
	if p.dir < 0 {
		return err
	}
	defer p.close()
	j := job{f: f, dir: p.dir, leaf: p.leaf, opts: opts, modTime: modTime}
	if err == nil {
		j.old = &st
	}
	if strings.HasSuffix(name, "/") && j.old == nil {
		return primitives.ErrIsDirectory
	}
	if err := j.check(); err != nil {
		return err
	}
	if opts.Append {
		return j.append(ctx, r)
	}
	return j.replace(ctx, r)
}

func checkWrite(opts primitives.WriteOptions) error {
	switch {
	case opts.Mode&^fs.ModePerm != 0:
		return invalid("Mode %v has more than permission bits", opts.Mode)
	case opts.Exclusive && opts.IfRevision != "":
		return invalid("Exclusive wants no file and IfRevision wants one")
	}
	return nil
}

// job writes one file whose directory is open.
type job struct {
	f    *FS
	dir  int
	leaf string
	opts primitives.WriteOptions
	old  *unix.Stat_t // the existing file; nil if there is none

	modTime time.Time // set on the file, unless it is zero or the file is appended to
}

// check refuses a write that is not permitted. Replacing a file needs only a writable directory,
// but check also requires permission for the file itself.
func (j *job) check() error {
	if j.old == nil {
		if j.opts.IfRevision != "" {
			return primitives.ErrConflict
		}
		return nil
	}
	if err := regular(j.old); err != nil {
		return err
	}
	if j.opts.Exclusive {
		return unix.EEXIST
	}
	if err := unix.Faccessat(j.dir, j.leaf, unix.W_OK, unix.AT_EACCESS); err != nil {
		return err
	}
	if j.opts.IfRevision != "" && revision(j.old) != j.opts.IfRevision {
		return primitives.ErrConflict
	}
	return nil
}

// replace writes a new file beside the old one and then renames it over the old one.
func (j *job) replace(ctx context.Context, r io.Reader) error {
	temp := tempName()
	err := j.create(ctx, temp, r)
	if err != nil {
		return err
	}
	defer j.f.freeLater(j.hold())
	if err = setTime(j.dir, temp, j.modTime); err == nil {
		err = j.commit(temp)
	}
	if err != nil {
		_ = unix.Unlinkat(j.dir, temp, 0)
	}
	return err
}

// create writes a new file.
func (j *job) create(ctx context.Context, name string, r io.Reader) error {
	made := fs.FileMode(0o600)
	if j.f.cfg.umask && j.old == nil {
		made = cmp.Or(j.opts.Mode, defaultMode)
	}
	fd, err := openat(j.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, uint32(made))
	if err != nil {
		return err
	}
	err = j.f.fill(ctx, fd, r)
	if err == nil {
		err = j.setAttributes(fd)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = unix.Unlinkat(j.dir, name, 0)
	}
	return err
}

// setAttributes sets the owner and the mode of the new file.
func (j *job) setAttributes(fd int) error {
	mode := j.opts.Mode
	if j.old == nil {
		if err := j.f.own(fd); err != nil {
			return err
		}
		if j.f.cfg.umask {
			return nil
		}
		return unix.Fchmod(fd, uint32(cmp.Or(mode, defaultMode)))
	}
	if mode == 0 || j.f.cfg.umask {
		mode = fs.FileMode(j.old.Mode) & fs.ModePerm
	}
	var made unix.Stat_t
	if err := unix.Fstat(fd, &made); err != nil {
		return err
	}
	uid, gid := int(j.old.Uid), int(j.old.Gid)
	if made.Uid != j.old.Uid || made.Gid != j.old.Gid {
		// Only root may give files away; other users can at least keep a group that they are in.
		if err := unix.Fchown(fd, uid, gid); err != nil {
			_ = unix.Fchown(fd, -1, gid)
		}
	}
	return unix.Fchmod(fd, uint32(mode))
}

// commit makes the new file visible.
func (j *job) commit(temp string) error {
	switch {
	case j.opts.Exclusive:
		return renameNew(j.dir, temp, j.dir, j.leaf)
	case j.opts.IfRevision != "":
		j.f.commit.Lock()
		defer j.f.commit.Unlock()
		st, err := lstatat(j.dir, j.leaf)
		if errors.Is(err, unix.ENOENT) || err == nil && revision(&st) != j.opts.IfRevision {
			return primitives.ErrConflict
		}
		if err != nil {
			return err
		}
	default:
		j.f.commit.RLock()
		defer j.f.commit.RUnlock()
	}
	return unix.Renameat(j.dir, temp, j.dir, j.leaf)
}

// append adds to the file in place.
func (j *job) append(ctx context.Context, r io.Reader) error {
	if j.opts.IfRevision != "" {
		j.f.commit.Lock()
		defer j.f.commit.Unlock()
	}
	fd, made, err := j.openAppend()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := regular(&st); err != nil {
		return err
	}
	if j.opts.IfRevision != "" && revision(&st) != j.opts.IfRevision {
		return primitives.ErrConflict
	}
	switch {
	case made:
		j.old = nil
		err = j.setAttributes(fd)
	case j.opts.Mode != 0:
		err = unix.Fchmod(fd, uint32(j.opts.Mode))
	}
	if err != nil {
		return err
	}
	return j.f.copyIn(ctx, fdWriter(fd), r)
}

// openAppend opens the file, and reports whether it made the file.
func (j *job) openAppend() (fd int, made bool, err error) {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK
	for range 10 { // other programs may make and remove the file between the two calls
		if !j.opts.Exclusive {
			fd, err = openat(j.dir, j.leaf, flags, 0)
			if !errors.Is(err, unix.ENOENT) {
				return fd, false, err
			}
		}
		fd, err = openat(j.dir, j.leaf, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
		if j.opts.Exclusive || !errors.Is(err, unix.EEXIST) {
			return fd, true, err
		}
	}
	return -1, false, err
}

// fill writes the content of r to a new file, with holes where it is zero.
func (f *FS) fill(ctx context.Context, fd int, r io.Reader) error {
	if b, ok := r.(*bytes.Reader); ok && b.Len() <= chunkSize {
		_, err := b.WriteTo(fdWriter(fd)) // in one piece and without a copy
		return err
	}
	w := sparse.NewWriter(fdWriter(fd))
	err := f.copyIn(ctx, w, r)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// copyIn copies r to w. It stops when the write must stop.
func (f *FS) copyIn(ctx context.Context, w io.Writer, r io.Reader) error {
	buf := f.chunks.Get().(*[]byte)
	defer f.chunks.Put(buf)
	for {
		if err := f.stopped(ctx); err != nil {
			return err
		}
		n, err := r.Read(*buf)
		if n > 0 {
			if _, werr := w.Write((*buf)[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fdWriter writes to an open file without the cost of an os.File.
type fdWriter int

// Write implements io.Writer.
func (w fdWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(w), p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Seek implements io.Seeker.
func (w fdWriter) Seek(offset int64, whence int) (int64, error) {
	return unix.Seek(int(w), offset, whence)
}

// Truncate sets the size of the file.
func (w fdWriter) Truncate(size int64) error { return unix.Ftruncate(int(w), size) }

const (
	tempPrefix = ".agentenv-"
	tempSuffix = ".tmp"
	tempRandom = 26 // length of rand.Text
)

// ownTempPrefix returns the prefix of the temporary names of this program. It names the process, so
// that orphaned temporary files can be recognized.
var ownTempPrefix = sync.OnceValue(func() string { return tempPrefix + proctree.Self().String() + "-" })

// tempName returns an unguessable name for a file that is not complete yet.
func tempName() string { return ownTempPrefix() + rand.Text() + tempSuffix }

// IsTemp reports whether a file name is the temporary name of an incomplete file.
func IsTemp(name string) bool {
	_, ok := tempWriter(name)
	return ok
}

// IsTempOf reports whether a file name is a temporary name that the process writer has chosen.
func IsTempOf(name string, writer proctree.Identity) bool {
	w, ok := tempWriter(name)
	return ok && w == writer
}

func tempWriter(name string) (proctree.Identity, bool) {
	rest, ok := strings.CutPrefix(name, tempPrefix)
	if !ok {
		return proctree.Identity{}, false
	}
	rest, ok = strings.CutSuffix(rest, tempSuffix)
	writer, random, _ := strings.Cut(rest, "-")
	if !ok || len(random) != tempRandom {
		return proctree.Identity{}, false
	}
	id, err := proctree.ParseIdentity(writer)
	return id, err == nil
}
