// Package tree stores states of a workspace as trees of blobs. A blob is the content of a file
// or the listing of a directory. A listing names the digests of the directory's entries, so two
// states share all files and directories that are equal in both.
//
// take.go stores the state of a workspace and reads only what has changed since the last one.
// pack.go writes a stored state as an archive. compare.go finds what differs between two.
package tree

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Blobs keeps contents by their digests. See the methods of store.Store.
type Blobs interface {
	PutBlobs(ctx context.Context, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error)
	Blob(ctx context.Context, d store.Digest) (io.ReadCloser, error)
}

// Entry is one file, link or directory.
type Entry struct {
	Name    string // the last element of its path
	Mode    fs.FileMode
	Size    int64 // of a regular file
	ModTime time.Time
	// Digest is that of the content, or of the listing of a directory.
	Digest store.Digest
	Target string // of a link
}

func (e Entry) isDir() bool  { return e.Mode.IsDir() }
func (e Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

// maxListing is how many bytes the listing of one directory may have.
const maxListing = 256 << 20

// encode returns the listing of a directory: a line for each entry, sorted by name. Names may
// have any bytes, so they are quoted as Go strings.
func encode(entries []Entry) []byte {
	var b []byte
	for _, e := range entries {
		kind := byte('f')
		switch {
		case e.isDir():
			kind = 'd'
		case e.isLink():
			kind = 'l'
		}
		b = append(b, kind, ' ')
		b = strconv.AppendUint(b, uint64(e.Mode.Perm()), 8)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.Size, 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.ModTime.UnixNano(), 10)
		b = append(b, ' ')
		b = strconv.AppendQuoteToASCII(b, e.Name)
		b = append(b, ' ')
		if e.isLink() {
			b = strconv.AppendQuoteToASCII(b, e.Target)
		} else {
			b = append(b, e.Digest...)
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
	case "f":
		e.Digest = store.Digest(rest)
	case "d":
		e.Mode |= fs.ModeDir
		e.Digest = store.Digest(rest)
	case "l":
		e.Mode |= fs.ModeSymlink
		target, after, ok := cutQuoted(rest)
		e.Target = target
		return e, ok && after == ""
	default:
		return e, false
	}
	raw, err := hex.DecodeString(rest)
	return e, err == nil && len(raw) == 32
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
func list(ctx context.Context, blobs Blobs, d store.Digest) (_ []Entry, err error) {
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
