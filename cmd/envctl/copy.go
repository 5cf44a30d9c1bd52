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

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
)

func (a *app) newCopyCmd() *cobra.Command {
	t := &copyFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy files and folders into or out of a sandbox",
		Long: `Copy a file or a folder between this machine and a sandbox. One of the two is
ID:PATH; a relative PATH starts at the workspace, an absolute one at the root. "-" is
standard input or output.

A file is copied into DST if that is a folder or ends with a slash, else to that
name. A folder's content is copied into DST. What is missing of DST is made. Contents,
permissions and times of modification are kept, owners are not.

Links below SRC are copied as they are, wherever they lead. SRC itself is followed, and
so is DST if it is a link in the sandbox. On this machine a link in DST is followed only
within the folder that holds it: the sandbox may have made it. Nothing is written
outside of DST, and no more than --max-size comes out of a sandbox.

FIFOs, sockets and devices cannot be copied: a folder of this machine with one is
refused, and those of a sandbox are left out with a warning.`,
		Example: `  envctl cp 3f2a:report.md .
  envctl cp ./fixtures 3f2a:tests/fixtures
  envctl cp 3f2a:/var/log/app.log -`,
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
			return usagef("one of SRC and DST must be a path of a sandbox, and the other one of this machine; give exactly one as ID:PATH")
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

// check parses --max-size.
func (t *copyFlags) check() error {
	size, err := primitives.ParseSize(t.maxSize)
	if err != nil || size == 0 {
		return usagef("--max-size: %q is no size; give a number with a unit, such as 512m or 32g, or none", t.maxSize)
	}
	t.limit = archive.Limit{Bytes: int64(size), Advice: "give a larger --max-size, or copy less"}
	return nil
}

// completePlaces completes one of the two places with the IDs of sandboxes. The other place is a
// file of this machine, which the shell completes itself.
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
	if src == "-" && (dst.path == "" || strings.HasSuffix(dst.path, "/")) {
		return usagef("give the file that standard input is copied to as ID:PATH")
	}
	var info fs.FileInfo
	if src != "-" {
		if info, err = os.Stat(src); err != nil {
			return copyError(src, err)
		}
	}
	env, err := t.attach(ctx, dst.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	p := env.Primitive()
	switch {
	case src == "-":
		err = p.WriteFile(ctx, dst.path, t.app.in, primitives.WriteOptions{})
	case info.IsDir():
		err = unpackFolder(ctx, p, src, firstOf(dst.path, "."))
	default:
		err = unpackFile(ctx, p, src, info, dst.path)
	}
	if ctx.Err() != nil {
		return ctx.Err() // rather than the error of a closed file
	}
	return copyError(src+" to "+dst.id+":"+dst.path, err)
}

// copyError returns err with what was copied, instead of the operation that failed.
func copyError(what string, err error) error {
	if err == nil {
		return nil
	}
	cause := err
	if where, ok := errors.AsType[*primitives.Error](err); ok {
		cause = where.Err
	} else if where, ok := errors.AsType[*fs.PathError](err); ok && where == err { //nolint:errorlint // the outermost
		cause = where.Err
	}
	if errors.Is(err, primitives.ErrPathEscape) {
		return fmt.Errorf("copy %s: %w; give an absolute path for what is outside of the workspace", what, cause)
	}
	return fmt.Errorf("copy %s: %w", what, cause)
}

// unpackFile copies a file of this machine into the sandbox. It uses an archive, which keeps the
// modification time, except in two cases: a pipe has no such time, and a link in the sandbox
// must be followed.
func unpackFile(ctx context.Context, p primitives.Files, src string, info fs.FileInfo, dst string) error {
	dir, name, through, err := destination(ctx, p, dst, filepath.Base(src))
	if err != nil {
		return err
	}
	if through || !info.Mode().IsRegular() {
		file, err := input.OpenStream(ctx, src)
		if err != nil {
			return err
		}
		defer file.Close()
		return p.WriteFile(ctx, path.Join(dir, name), file, primitives.WriteOptions{Mode: info.Mode().Perm()})
	}
	file, err := input.Open(src)
	if err != nil {
		return err
	}
	defer file.Close()
	return archive.Pipe(func(w io.Writer) error { return archive.PackFile(ctx, w, file, name) },
		func(r io.Reader) error { return primitives.Unpack(ctx, p, dir, r) })
}

// destination returns the folder and the name to which a file is copied: base in dst if dst is a
// folder or a link to one, else dst itself. through reports whether dst is another link, which
// must be followed.
func destination(ctx context.Context, p primitives.Files, dst, base string) (dir, name string, through bool, err error) {
	if dst == "" || strings.HasSuffix(dst, "/") {
		return firstOf(dst, "."), base, false, nil
	}
	info, err := p.Stat(ctx, dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", false, err
	}
	link := info.Mode&fs.ModeSymlink != 0
	if link {
		if behind, err := p.Stat(ctx, dst+"/."); err == nil {
			info = behind
		}
	}
	if info.IsDir() {
		return dst, base, false, nil
	}
	if err == nil && !link && !info.Mode.IsRegular() {
		return "", "", false, primitives.ErrNotRegular
	}
	dir, name = path.Split(dst)
	return firstOf(dir, "."), name, link, nil
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
