package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxListing is how many bytes the listing of one directory may have.
const maxListing = 256 << 20

// encode returns the listing of a directory: a line for each entry, sorted by name. It begins with f for a file, p for a
// file in pieces, d for a folder and l for a link. Names may have any bytes, so they are quoted as Go strings.
func encode(entries []Entry) []byte {
	var b []byte
	for _, e := range entries {
		kind := byte('f')
		switch {
		case e.isDir():
			kind = 'd'
		case e.isLink():
			kind = 'l'
		case e.pieces:
			kind = 'p'
		}
		b = append(b, kind, ' ')
		b = strconv.AppendUint(b, uint64(e.Mode.Perm()), 8)
		b = append(b, ' ')
		size := e.Size
		if e.isLink() {
			size = 0 // that of its target follows from it
		}
		b = strconv.AppendInt(b, size, 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.ModTime.UnixNano(), 10)
		b = append(b, ' ')
		b = strconv.AppendQuoteToASCII(b, e.Name)
		b = append(b, ' ')
		if e.isLink() {
			b = strconv.AppendQuoteToASCII(b, e.Target)
		} else {
			b = append(b, e.digest...)
		}
		b = append(b, '\n')
	}
	return b
}

var errMalformed = errors.New("the stored listing of a directory is malformed")

// decode parses the output of encode.
func decode(r io.Reader) ([]Entry, error) {
	var entries []Entry
	in := bufio.NewReader(io.LimitReader(r, maxListing))
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return entries, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		e, ok := decodeLine(string(bytes.TrimSuffix(line, []byte("\n"))))
		if !ok || err != nil || len(entries) > 0 && entries[len(entries)-1].Name >= e.Name {
			return nil, fmt.Errorf("%w: line %d", errMalformed, len(entries)+1)
		}
		entries = append(entries, e)
	}
}

func decodeLine(line string) (e Entry, ok bool) {
	fields := strings.SplitN(line, " ", 5)
	if len(fields) != 5 {
		return e, false
	}
	perm, permErr := strconv.ParseUint(fields[1], 8, 9)
	size, sizeErr := strconv.ParseInt(fields[2], 10, 64)
	modified, timeErr := strconv.ParseInt(fields[3], 10, 64)
	name, rest, nameOK := cutQuoted(fields[4])
	rest, spaceOK := strings.CutPrefix(rest, " ")
	if permErr != nil || sizeErr != nil || timeErr != nil || size < 0 || !nameOK || !spaceOK || !validName(name) {
		return e, false
	}
	e = Entry{Name: name, Mode: fs.FileMode(perm), Size: size, ModTime: time.Unix(0, modified)}
	switch fields[0] {
	case "f", "p":
		e.digest, e.pieces = Digest(rest), fields[0] == "p"
	case "d":
		e.Mode |= fs.ModeDir
		e.digest = Digest(rest)
	case "l":
		e.Mode |= fs.ModeSymlink
		target, after, ok := cutQuoted(rest)
		e.Target, e.Size = target, int64(len(target))
		return e, ok && after == ""
	default:
		return e, false
	}
	return e, validDigest(e.digest)
}

// cutQuoted cuts a quoted string from the beginning of s.
func cutQuoted(s string) (text, rest string, ok bool) {
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", s, false
	}
	text, err = strconv.Unquote(quoted)
	return text, s[len(quoted):], err == nil
}

// validName reports whether name is valid for a directory entry.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// list reads the listing of a directory.
func list(ctx context.Context, blobs Blobs, d Digest) (_ []Entry, err error) {
	r, err := blobs.Blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return decode(r)
}

// errTooDeep stops the walk through cyclic or too deeply nested listings.
var errTooDeep = fmt.Errorf("%w: its folders are nested more than %d deep", primitives.ErrLimit, maxDepth)

// maxDepth is how deep the directories of a state may be nested. The kernel limits a path to
// 4096 bytes.
const maxDepth = 4096

// list stores the listings of all folders that have changed, the deepest ones first.
func (t *taking) list(ctx context.Context) error {
	t.dirs = maps.Clone(t.index.dirs)
	if t.dirs == nil {
		t.dirs = make(map[string]Digest)
	}
	t.state.Files, t.state.Bytes = 0, 0
	children := make(map[string][]*tracked)
	for i := range t.files {
		f := &t.files[i]
		switch {
		case f.lost:
			t.state.Unreadable = named(t.state.Unreadable, f.info.Path)
		case f.info.Mode.IsRegular():
			t.state.Files++
			t.state.Bytes += f.size
		}
		if f.info.Mode.IsRegular() && !f.lost && f.digest == "" {
			return fmt.Errorf("%s: its content was not read", f.info.Path)
		}
		if dir := path.Dir(f.info.Path); t.dirty[dir] && !f.lost {
			children[dir] = append(children[dir], f)
		}
	}
	dirs := slices.SortedFunc(maps.Keys(t.dirty), func(a, b string) int { return depthOf(b) - depthOf(a) })
	var fresh [][]byte
	for _, dir := range dirs {
		if !t.isListed(dir) {
			delete(t.dirs, dir)
			continue
		}
		entries := make([]Entry, 0, len(children[dir]))
		for _, f := range children[dir] {
			entries = append(entries, f.entry(t.dirs))
		}
		listing := encode(entries)
		digest := digestOf(listing)
		if t.dirs[dir] != digest {
			t.dirs[dir] = digest
			fresh = append(fresh, listing)
		}
	}
	t.state.Root = t.dirs["."]
	_, err := t.blobs.PutBlobs(ctx, func(yield func(io.Reader, error) bool) {
		for _, listing := range fresh {
			t.stored += int64(len(listing))
			if !yield(bytes.NewReader(listing), nil) {
				return
			}
		}
	})
	return err
}

// depthOf sorts folders: the workspace itself is the least deep.
func depthOf(dir string) int {
	if dir == "." {
		return -1
	}
	return strings.Count(dir, "/")
}

// isListed reports whether a folder is in the state.
func (t *taking) isListed(dir string) bool {
	if dir == "." {
		return true
	}
	i, found := slices.BinarySearchFunc(t.files, dir, func(f tracked, dir string) int { return strings.Compare(f.info.Path, dir) })
	return found && t.files[i].info.IsDir()
}

// entry returns the file as an entry of its folder.
func (f *tracked) entry(dirs map[string]Digest) Entry {
	e := Entry{Name: path.Base(f.info.Path), Mode: f.info.Mode, ModTime: f.info.ModTime}
	switch {
	case e.isDir():
		e.digest = dirs[f.info.Path]
	case e.isLink():
		e.Target, e.Size = f.info.Target, int64(len(f.info.Target))
	default:
		e.Size, e.digest, e.pieces = f.size, f.digest, f.pieces != nil
	}
	return e
}
