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
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// maxText is the maximum size in bytes of a file that is compared line by line. Larger files
// are patched as a whole, like binary ones.
const maxText = 8 << 20

// WritePatch writes changes as one patch for "git apply".
func WritePatch(ctx context.Context, w io.Writer, blobs Blobs, changes []Change) error {
	contents := &Snapshot{ctx: ctx, blobs: blobs}
	p := &patchWriter{w: bufio.NewWriter(w), old: contents, current: contents}
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
	w            *bufio.Writer // keeps its first error for Flush
	old, current *Snapshot
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
	oldID, err := blobID(p.old, was)
	if err != nil {
		return err
	}
	newID, err := blobID(p.current, is)
	if err != nil {
		return err
	}
	mode := ""
	if was != nil && is != nil && gitMode(*was) == gitMode(*is) {
		mode = " " + gitMode(*is)
	}
	p.printf("index %s..%s%s\n", oldID, newID, mode)
	oldText, oldOK, err := text(p.old, was)
	if err != nil {
		return err
	}
	newText, newOK, err := text(p.current, is)
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

// binary writes the complete new content, and the old content for reverting the patch.
func (p *patchWriter) binary(was, is *Entry) error {
	if _, err := p.w.WriteString("GIT binary patch\n"); err != nil {
		return err
	}
	if err := p.literal(p.current, is); err != nil {
		return err
	}
	return p.literal(p.old, was)
}

func (p *patchWriter) literal(s *Snapshot, e *Entry) error {
	size := int64(0)
	if e != nil {
		size = e.Size
	}
	p.printf("literal %d\n", size)
	lines := &base85Writer{w: p.w}
	zip := zlib.NewWriter(lines)
	if e != nil {
		if err := s.copyTo(zip, *e); err != nil {
			return err
		}
	}
	if err := zip.Close(); err != nil {
		return err
	}
	if err := lines.close(); err != nil {
		return err
	}
	return p.w.WriteByte('\n')
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
