package workspace

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1" // git names contents by it; it protects nothing
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/agentenv-dev/agentenv/internal/sparse"
)

// maxText is the maximum size in bytes of a file that is compared line by line. Larger files
// are patched as a whole, like binary ones.
const maxText = 8 << 20

// WritePatch writes changes as one patch for "git apply".
func WritePatch(ctx context.Context, w io.Writer, blobs Blobs, changes []Change) error {
	contents := &Snapshot{ctx: ctx, blobs: blobs}
	p := &patchWriter{w: bufio.NewWriter(w), contents: contents}
	for _, c := range changes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.change(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	return p.w.Flush()
}

// patchWriter writes git's extended patch format.
type patchWriter struct {
	w        *bufio.Writer // keeps its first error for Flush
	contents *Snapshot
}

func (p *patchWriter) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.w, format, args...) // Flush reports it
}

func (p *patchWriter) change(c Change) error {
	was, is := c.Old, c.New
	switch {
	case was == nil || is == nil:
		return p.file(c.Path, was, is)
	case was.isLink() != is.isLink(): // git cannot change the type of a file
		return errors.Join(p.file(c.Path, was, nil), p.file(c.Path, nil, is))
	case was.sameForGit(*is):
		return nil // a permission that git does not track
	}
	return p.file(c.Path, was, is)
}

// file writes the patch of one file. A nil entry means that the file does not exist.
func (p *patchWriter) file(name string, was, is *Entry) error {
	a, b := quoteName("a/"+name), quoteName("b/"+name)
	p.printf("diff --git %s %s\n", a, b)
	switch {
	case was == nil:
		p.printf("new file mode %s\n", gitMode(*is))
	case is == nil:
		p.printf("deleted file mode %s\n", gitMode(*was))
	case gitMode(*was) != gitMode(*is):
		p.printf("old mode %s\nnew mode %s\n", gitMode(*was), gitMode(*is))
	}
	if was != nil && is != nil && was.sameContent(*is) {
		return nil
	}
	oldID, err := blobID(p.contents, was)
	if err != nil {
		return err
	}
	newID, err := blobID(p.contents, is)
	if err != nil {
		return err
	}
	mode := ""
	if was != nil && is != nil && gitMode(*was) == gitMode(*is) {
		mode = " " + gitMode(*is)
	}
	p.printf("index %s..%s%s\n", oldID, newID, mode)
	oldText, oldOK, err := text(p.contents, was)
	if err != nil {
		return err
	}
	newText, newOK, err := text(p.contents, is)
	if err != nil {
		return err
	}
	if !oldOK || !newOK {
		return p.binary(was, is)
	}
	if len(oldText)+len(newText) == 0 {
		return nil // an empty file has no lines to show
	}
	if was == nil {
		a = "/dev/null"
	}
	if is == nil {
		b = "/dev/null"
	}
	p.printf("--- %s\n+++ %s\n", endName(a), endName(b))
	_, err = p.w.Write(hunks(diff.Diff("old", oldText, "new", newText)))
	return err
}

// hunks removes the three lines before the hunks.
func hunks(unified []byte) []byte {
	for range 3 {
		_, unified, _ = bytes.Cut(unified, []byte("\n"))
	}
	return unified
}

// binary writes the new content, and the old content for reverting the patch.
func (p *patchWriter) binary(was, is *Entry) (err error) {
	if _, err := p.w.WriteString("GIT binary patch\n"); err != nil {
		return err
	}
	old, err := spool(p.contents, was)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	current, err := spool(p.contents, is)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, current.Close()) }()
	if err := p.content(old.reader(), current.reader()); err != nil {
		return err
	}
	return p.content(current.reader(), old.reader())
}

// spooled is a content that is read at any place: in a file without a name.
type spooled struct {
	*os.File
	size int64
}

// spool copies a content, which is empty for nil, to a file without a name.
func spool(s *Snapshot, e *Entry) (_ spooled, err error) {
	f, err := os.CreateTemp("", "agentenv-patch-*")
	if err != nil {
		return spooled{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return spooled{}, err
	}
	if e != nil {
		w := sparse.NewWriter(f)
		if err := errors.Join(s.copyTo(w, *e), w.Close()); err != nil {
			return spooled{}, err
		}
	}
	info, err := f.Stat()
	if err != nil {
		return spooled{}, err
	}
	return spooled{f, info.Size()}, nil
}

func (s spooled) reader() *io.SectionReader { return io.NewSectionReader(s.File, 0, s.size) }

// content writes a content as a delta against base, or as a whole if that is smaller.
func (p *patchWriter) content(base, content *io.SectionReader) error {
	kind, size, write := "literal", content.Size(), func(w io.Writer) error {
		_, err := io.Copy(w, io.NewSectionReader(content, 0, content.Size()))
		return err
	}
	d, err := findDelta(base, content)
	if err != nil {
		return err
	}
	if d != nil {
		length, packed := new(meter), new(meter)
		if err := deflate(packed, func(w io.Writer) error { return d.write(io.MultiWriter(length, w)) }); err != nil {
			return err
		}
		err := deflate(&meter{most: packed.size}, write)
		if err != nil && !errors.Is(err, errTooMuch) {
			return err
		}
		if err != nil {
			kind, size, write = "delta", length.size, d.write
		}
	}
	p.printf("%s %d\n", kind, size)
	lines := &base85Writer{w: p.w}
	if err := errors.Join(deflate(lines, write), lines.close()); err != nil {
		return err
	}
	return p.w.WriteByte('\n')
}

// deflate compresses what write writes.
func deflate(to io.Writer, write func(io.Writer) error) error {
	zip := zlib.NewWriter(to)
	if err := write(zip); err != nil {
		return err
	}
	return zip.Close()
}

// errTooMuch is the error of a [meter] that is full.
var errTooMuch = errors.New("too much")

// meter counts bytes, and fails beyond most. Zero is no limit.
type meter struct{ size, most int64 }

// Write implements io.Writer.
func (m *meter) Write(b []byte) (int, error) {
	if m.size += int64(len(b)); m.most > 0 && m.size > m.most {
		return 0, errTooMuch
	}
	return len(b), nil
}

// text returns the content of a file that can be compared line by line: small enough and
// without NUL.
func text(s *Snapshot, e *Entry) (content []byte, ok bool, err error) {
	if e == nil {
		return nil, true, nil
	}
	if e.Size > maxText {
		return nil, false, nil
	}
	var b bytes.Buffer
	err = s.copyTo(&b, *e)
	return b.Bytes(), err == nil && bytes.IndexByte(b.Bytes(), 0) < 0, err
}

// blobID returns git's object ID of a content.
func blobID(s *Snapshot, e *Entry) (string, error) {
	if e == nil {
		return strings.Repeat("0", 2*sha1.Size), nil
	}
	h := sha1.New()
	_, _ = fmt.Fprintf(h, "blob %d\x00", e.Size)
	if err := s.copyTo(h, *e); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sameForGit reports whether git sees no difference between the entries.
func (e Entry) sameForGit(o Entry) bool { return e.sameContent(o) && gitMode(e) == gitMode(o) }

// narrowedTo reports whether o lacks a permission of the entry.
func (e Entry) narrowedTo(o Entry) bool { return e.Mode.Perm()&^o.Mode.Perm() != 0 }

func gitMode(e Entry) string {
	switch {
	case e.isLink():
		return "120000"
	case e.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// endName appends a tab to a name with a space in it, as git does.
func endName(name string) string {
	if strings.Contains(name, " ") && !strings.HasPrefix(name, `"`) {
		return name + "\t"
	}
	return name
}

// quoteName quotes a name as git does, if it needs quotes.
func quoteName(name string) string {
	plain := utf8.ValidString(name)
	for i := 0; plain && i < len(name); i++ {
		plain = name[i] >= ' ' && name[i] != 0x7f && name[i] != '"' && name[i] != '\\'
	}
	if plain {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
