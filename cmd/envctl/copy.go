package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/sparse"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func (a *app) newCopyCmd() *cobra.Command {
	t := &copyFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy files and folders into or out of a sandbox",
		Long: `Copy a file or a folder between this machine and a sandbox. One of the two is
ID:PATH; a relative PATH starts at the workspace. A folder's content is copied into
DST, which is made if it is missing. "-" is standard input or output. Nothing is
written through a link that leads out of DST's folder, and no more than --max-size.`,
		Example: `  envctl cp 3f2a:report.md .
  envctl cp ./fixtures 3f2a:tests/fixtures
  envctl cp 3f2a:app.log -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, dst := parsePlace(args[0]), parsePlace(args[1])
			switch {
			case src.id != "" && dst.id == "":
				if err := t.check(); err != nil {
					return err
				}
				return t.copyOut(cmd.Context(), src, dst.path)
			case src.id == "" && dst.id != "":
				return t.copyIn(cmd.Context(), src.path, dst)
			}
			return usagef("give exactly one of SRC and DST as ID:PATH")
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&t.maxSize, "max-size", "16g", "most that is copied out of a sandbox, as in 512m or 32g, or none")
	cmd.ValidArgsFunction = t.completePlaces
	return cmd
}

// copyFlags are the flags of cp.
type copyFlags struct {
	target
	maxSize string
	limit   archive.Limit // of what is copied out
}

// check reads --max-size.
func (t *copyFlags) check() error {
	size, err := primitives.ParseSize(t.maxSize)
	if err != nil || size == 0 {
		return usagef("give --max-size as a number with a unit, such as 512m or 32g, or none, not %q", t.maxSize)
	}
	t.limit = archive.Limit{Bytes: int64(size), Advice: "give a larger --max-size, or copy less"}
	return nil
}

// completePlaces offers the shell the sandboxes there are, for one of the two places: the
// other is a file of this machine, which the shell offers itself.
func (t *target) completePlaces(cmd *cobra.Command, args []string, to string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 || len(args) == 1 && parsePlace(args[0]).id != "" {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ids, _ := t.completeIDs(0)(cmd, nil, to)
	for i, offered := range ids {
		id, what, _ := strings.Cut(offered, "	")
		ids[i] = cobra.CompletionWithDesc(id+":", what)
	}
	return ids, cobra.ShellCompDirectiveNoSpace
}

func (t *copyFlags) copyIn(ctx context.Context, src string, dst place) (err error) {
	env, err := t.attach(ctx, dst.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	p := env.Primitive()
	if src == "-" {
		return p.WriteFile(ctx, dst.path, t.app.in, primitives.WriteOptions{})
	}
	info, err := os.Stat(src)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return unpackFolder(ctx, p, src, firstOf(dst.path, "."))
	}
	file, err := input.OpenStream(ctx, src)
	if err != nil {
		return err
	}
	defer file.Close()
	name, err := fileIn(ctx, p, dst.path, filepath.Base(src))
	if err != nil {
		return err
	}
	err = p.WriteFile(ctx, name, file, primitives.WriteOptions{Mode: info.Mode().Perm()})
	if ctx.Err() != nil {
		return ctx.Err() // not that the file was closed
	}
	return err
}

// fileIn is where a file goes: into an existing folder, else to that very name.
func fileIn(ctx context.Context, p primitives.Files, dst, base string) (string, error) {
	if dst == "" || strings.HasSuffix(dst, "/") {
		return path.Join(dst, base), nil
	}
	info, err := p.Stat(ctx, dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dst, nil
	case err != nil:
		return "", err
	case info.IsDir():
		return path.Join(dst, base), nil
	}
	return dst, nil
}

// unpackFolder streams a folder of this machine into the sandbox.
func unpackFolder(ctx context.Context, p primitives.Files, src, dst string) error {
	from := archive.Folder{Path: src, Limit: archive.Limit{Bytes: -1}}
	err := archive.Pipe(func(w io.Writer) error { return from.Pack(ctx, w) },
		func(r io.Reader) error { return primitives.Unpack(ctx, p, dst, r) })
	if errors.Is(err, primitives.ErrNotRegular) {
		err = fmt.Errorf("%w; remove it, or copy the folder in parts", err)
	}
	return err
}

func (t *copyFlags) copyOut(ctx context.Context, src place, dst string) (err error) {
	env, err := t.attach(ctx, src.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	p := env.Primitive()
	from := firstOf(src.path, ".")
	info, err := p.Stat(ctx, from)
	if err != nil {
		return err
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
		return err
	}
	defer r.Close()
	if dst == "-" {
		return t.copyFile(t.app.out, r, from)
	}
	if st, err := os.Stat(dst); err == nil && st.IsDir() {
		dst = filepath.Join(dst, path.Base(from))
	}
	return t.writeLocal(dst, r, info.Mode.Perm())
}

// writeLocal writes a file of this machine, where it is zero with holes. A link in the
// place of the file is followed only within its folder: an earlier copy may have made
// it.
func (t *copyFlags) writeLocal(name string, r io.Reader, mode fs.FileMode) (err error) {
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer root.Close()
	base := filepath.Base(name)
	if info, err := root.Stat(base); err == nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: name, Err: primitives.ErrNotRegular}
	}
	file, err := root.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := sparse.NewWriter(file)
	return errors.Join(t.copyFile(w, r, name), w.Close())
}

// copyFile copies the content of one file within the limit.
func (t *copyFlags) copyFile(w io.Writer, r io.Reader, name string) error {
	most := t.limit.Bytes
	if most < 0 {
		most = math.MaxInt64
	}
	if n, err := io.Copy(w, io.LimitReader(r, most)); err != nil || n < most {
		return err
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1)); err != nil || n == 0 {
		return err
	}
	return t.tooLarge(name)
}

func (t *copyFlags) tooLarge(name string) error {
	return &fs.PathError{Op: "copy", Path: name, Err: fmt.Errorf("%w: there is more than %d bytes; %s", primitives.ErrLimit, t.limit.Bytes, t.limit.Advice)}
}

// packFolder streams a folder of the sandbox to this machine. The sandbox is not
// trusted: the archive is unpacked below dst only, and within the limit.
func (t *copyFlags) packFolder(ctx context.Context, p primitives.Files, src, dst string) (err error) {
	r, err := primitives.Pack(ctx, p, src, primitives.PackOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return archive.Pipe(func(w io.Writer) error { return archive.Copy(w, r, t.limit) },
		func(r io.Reader) error { return local.Unpack(ctx, dst, r) })
}
