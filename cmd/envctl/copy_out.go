package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func (t *copyFlags) copyOut(ctx context.Context, src place, dst string) (err error) {
	env, err := t.attach(ctx, src.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	p, what := env.Primitive(), src.id+":"+src.path
	from := firstOf(src.path, ".")
	info, err := followed(ctx, p, from)
	if err != nil {
		return copyError(what, err)
	}
	if info.IsDir() {
		if dst == "-" {
			return usagef("give a folder to copy the folder %s into", from)
		}
		return t.packFolder(ctx, p, from, dst)
	}
	if t.limit.Bytes >= 0 && info.Size > t.limit.Bytes {
		return t.tooLarge(from) // before DST is touched
	}
	r, err := p.Open(ctx, from)
	if err != nil {
		return copyError(what, err)
	}
	defer r.Close()
	content := &limited{r: r, left: t.limit.Bytes, over: t.tooLarge(from)}
	if dst == "-" {
		_, err = io.Copy(t.app.out, content)
		return err
	}
	dir, name := filepath.Split(dst)
	if st, err := os.Stat(dst); name == "" || err == nil && st.IsDir() {
		dir, name = dst, path.Base(from)
	}
	to, err := local.OpenFolder(firstOf(dir, "."))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return to.WriteFile(ctx, name, content, info.Mode.Perm(), info.ModTime)
}

// followed returns the file that a path of the sandbox leads to, through links as well. The
// result is only a hint: Open and Pack follow the links again.
func followed(ctx context.Context, p primitives.EnvironmentPrimitive, name string) (primitives.FileInfo, error) {
	const maxLinks = 40
	for range maxLinks {
		info, err := p.Stat(ctx, name)
		slash := strings.HasSuffix(name, "/")
		if err != nil || info.IsDir() || info.Target == "" && !slash {
			return info, err
		}
		if folder, err := p.Stat(ctx, strings.TrimRight(name, "/")+"/."); slash || !errors.Is(err, primitives.ErrNotDirectory) {
			return folder, err
		}
		switch target := info.Target; {
		case path.IsAbs(target):
			name = target
		default:
			name = name[:strings.LastIndexByte(name, '/')+1] + target // a part before ".." may be a link
		}
	}
	return primitives.FileInfo{}, &fs.PathError{Op: "stat", Path: name, Err: errors.New("too many levels of symbolic links")}
}

// limited is a reader that fails with over after left bytes. A negative left means no limit.
type limited struct {
	r    io.Reader
	left int64
	over error // the error beyond the limit
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return l.r.Read(p)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left+1)])
	if int64(n) > l.left {
		n, err = int(l.left), l.over
	}
	l.left -= int64(n)
	return n, err
}

func (t *copyFlags) tooLarge(name string) error {
	return &fs.PathError{Op: "copy", Path: name, Err: fmt.Errorf("%w: there is more than %d bytes; %s", primitives.ErrLimit, t.limit.Bytes, t.limit.Advice)}
}

// packFolder streams a folder of the sandbox to this machine. The sandbox is not
// trusted: the archive is unpacked below dst only, and within the limit.
func (t *copyFlags) packFolder(ctx context.Context, p primitives.Files, src, dst string) (err error) {
	to, err := local.OpenFolder(dst)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := t.tellLeftOut(ctx, p, src); err != nil {
		return err
	}
	r, err := primitives.Pack(ctx, p, src, primitives.PackOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return archive.Pipe(func(w io.Writer) error { return archive.Copy(w, r, t.limit) },
		func(r io.Reader) error { return to.Unpack(ctx, r) })
}

// tellLeftOut warns about files that an archive cannot hold.
func (t *copyFlags) tellLeftOut(ctx context.Context, p primitives.Files, src string) error {
	const most = 10
	infos, err := p.List(ctx, src, primitives.ListOptions{Depth: -1})
	if err != nil && !errors.Is(err, primitives.ErrLimit) {
		return err
	}
	if err != nil {
		fmt.Fprintf(t.app.err, "warn: there are too many files to look for FIFOs, sockets and devices, which are left out\n")
	}
	n := 0
	for _, info := range infos {
		if kind := info.Mode.Type(); kind == 0 || kind == fs.ModeDir || kind == fs.ModeSymlink {
			continue
		}
		if n++; n <= most {
			fmt.Fprintf(t.app.err, "warn: left out %s: %v\n", info.Path, primitives.ErrNotRegular)
		}
	}
	if n > most {
		fmt.Fprintf(t.app.err, "warn: left out %d more that are no regular files\n", n-most)
	}
	return nil
}
