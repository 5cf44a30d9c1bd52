package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/primitives"
)

func (a *app) newCopyCmd() *cobra.Command {
	t := &target{app: a}
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy files and folders into or out of a sandbox",
		Long: `Copy a file or a folder between this machine and a sandbox. One of the two is
ID:PATH; a relative PATH starts at the workspace. A folder's content is copied into
DST, which is made if it is missing. "-" is standard input or output.`,
		Example: `  envctl cp 3f2a:report.md .
  envctl cp ./fixtures 3f2a:tests/fixtures
  envctl cp 3f2a:app.log -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, dst := parsePlace(args[0]), parsePlace(args[1])
			switch {
			case src.id != "" && dst.id == "":
				return t.copyOut(cmd.Context(), src, dst.path)
			case src.id == "" && dst.id != "":
				return t.copyIn(cmd.Context(), src.path, dst)
			}
			return usagef("give exactly one of SRC and DST as ID:PATH")
		},
	}
	t.flags(cmd)
	cmd.ValidArgsFunction = t.completePlaces
	return cmd
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

func (t *target) copyIn(ctx context.Context, src string, dst place) (err error) {
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
	file, err := openUntil(ctx, src)
	if err != nil {
		return err
	}
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.Close() })() // a read of a pipe does not heed it
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

// openUntil opens a file to be read, or gives up when ctx is done: a named pipe without
// a writer waits for one.
func openUntil(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := os.Open(name)
		done <- opened{file, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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

// special is an error about something in a folder that no archive holds, such as a
// socket or a named pipe.
func special(name string, d fs.DirEntry, err error) error {
	if err == nil && !d.IsDir() && d.Type()&^fs.ModeSymlink != 0 {
		err = fmt.Errorf("leave out %s, or copy the folder in parts: it is neither a file, a folder nor a link", name)
	}
	return err
}

// unpackFolder streams a folder of this machine into the sandbox.
func unpackFolder(ctx context.Context, p primitives.Files, src, dst string) error {
	if err := filepath.WalkDir(src+string(filepath.Separator), special); err != nil {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		archive := tar.NewWriter(w)
		err := archive.AddFS(os.DirFS(src))
		if err == nil {
			err = archive.Close()
		}
		w.CloseWithError(err)
		packed <- err
	}()
	err := primitives.Unpack(ctx, p, dst, r)
	r.CloseWithError(errors.New("unpacking stopped"))
	if perr := <-packed; err == nil {
		err = perr
	}
	return err
}

func (t *target) copyOut(ctx context.Context, src place, dst string) (err error) {
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
		return packFolder(ctx, p, from, dst)
	}
	r, err := p.Open(ctx, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if dst == "-" {
		_, err = io.Copy(t.app.out, r)
		return err
	}
	if st, err := os.Stat(dst); err == nil && st.IsDir() {
		dst = filepath.Join(dst, path.Base(from))
	}
	return writeLocal(dst, r, info.Mode.Perm())
}

func writeLocal(name string, r io.Reader, mode fs.FileMode) (err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = io.Copy(file, r)
	return err
}

// packFolder streams a folder of the sandbox to this machine. The sandbox is not
// trusted: the archive is unpacked below dst only.
func packFolder(ctx context.Context, p primitives.Files, src, dst string) (err error) {
	r, err := primitives.Pack(ctx, p, src, primitives.PackOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dst)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", src, err)
		}
		if err := unpackEntry(root, h, archive); err != nil {
			return fmt.Errorf("write %s: %w", h.Name, err)
		}
	}
}

// unpackEntry writes one entry of an archive; os.Root refuses what leads out.
func unpackEntry(root *os.Root, h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	mode := h.FileInfo().Mode().Perm()
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, mode|0o700)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		if filepath.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
			return fmt.Errorf("%w: a symbolic link to %s", primitives.ErrPathEscape, h.Linkname)
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(h.Linkname, name)
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, r)
	return errors.Join(err, file.Close())
}
