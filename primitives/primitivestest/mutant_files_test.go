package primitivestest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// brokenWrite changes the options of every write.
func brokenWrite(change func(opts *primitives.WriteOptions)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
			change(&opts)
			return f.WriteFile(ctx, name, r, opts)
		}
	})
}

// brokenInfo changes the results of Stat.
func brokenInfo(change func(ctx context.Context, f *faults, info *primitives.FileInfo)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.stat = func(ctx context.Context, name string) (primitives.FileInfo, error) {
			info, err := f.Stat(ctx, name)
			if err == nil {
				change(ctx, f, &info)
			}
			return info, err
		}
	})
}

// brokenList changes the results of List.
func brokenList(change func(infos []primitives.FileInfo, err error) ([]primitives.FileInfo, error)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.list = func(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
			return change(f.List(ctx, dir, opts))
		}
	})
}

// brokenBatch writes the files of a batch in another way.
func brokenBatch(write func(ctx context.Context, f *faults, file primitives.File) error) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.batch = func(ctx context.Context, files []primitives.File) ([]error, error) {
			errs := make([]error, len(files))
			for i := range files {
				errs[i] = write(ctx, f, files[i])
			}
			return errs, nil
		}
	})
}

func writeOne(ctx context.Context, f *faults, name string, file primitives.File) error {
	return f.WriteFile(ctx, name, bytes.NewReader(file.Content), primitives.WriteOptions{Mode: file.Mode})
}

func batchMutants() []mutant {
	return []mutant{
		{"a batch stops at a file that fails", "a batch writes every file and tells of each", `escape: error is <nil>, want "path leads out of the workspace" in its chain`, broken(func(f *faults) {
			f.batch = func(ctx context.Context, files []primitives.File) ([]error, error) {
				errs := make([]error, len(files))
				for i := range files {
					if errs[i] = writeOne(ctx, f, files[i].Path, files[i]); errs[i] != nil {
						break
					}
				}
				return errs, nil
			}
		})},
		{"a batch writes a file only once", "a batch fills new folders as single writes would", `content: got "oldbcdmtop", want "againbcdmtop"`, brokenBatch(func(ctx context.Context, f *faults, file primitives.File) error {
			err := f.WriteFile(ctx, file.Path, bytes.NewReader(file.Content), primitives.WriteOptions{Mode: file.Mode, Exclusive: true})
			if errors.Is(err, fs.ErrExist) {
				return nil
			}
			return err
		})},
		{"a batch knows paths by their text", "a batch fills new folders as single writes would", `files: got "m n", want "m n top"`, brokenBatch(func(ctx context.Context, f *faults, file primitives.File) error {
			return writeOne(ctx, f, strings.ReplaceAll(file.Path, "/../", "/"), file)
		})},
		{"a folder of a batch replaces a file", "a batch that uses the name of a file for a folder, or of a folder for a file, says so", `below a file: error is <nil>, want "not a directory" in its chain`, brokenBatch(func(ctx context.Context, f *faults, file primitives.File) error {
			if info, err := f.Stat(ctx, path.Dir(file.Path)); err == nil && !info.IsDir() {
				if err := f.Remove(ctx, path.Dir(file.Path), false); err != nil {
					return err
				}
			}
			return writeOne(ctx, f, file.Path, file)
		})},
		{"a batch replaces links", "a batch leads through links to what it makes itself", `files of n: got "a c", want "a b c target"`, brokenBatch(func(ctx context.Context, f *faults, file primitives.File) error {
			for _, name := range []string{file.Path, path.Dir(file.Path)} {
				if info, err := f.Stat(ctx, name); err == nil && info.Target != "" {
					if err := f.Remove(ctx, name, false); err != nil {
						return err
					}
				}
			}
			return writeOne(ctx, f, file.Path, file)
		})},
	}
}

func fileMutants() []mutant {
	return slices.Concat(writeMutants(), batchMutants(), []mutant{
		{"a missing file is empty", "a missing file is fs.ErrNotExist", `Open "case-2/nothing": no error`, broken(func(f *faults) {
			f.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
				r, err := f.Open(ctx, name)
				if errors.Is(err, fs.ErrNotExist) {
					return io.NopCloser(strings.NewReader("")), nil
				}
				return r, err
			}
		})},
		{"an empty file is missing", "an empty file is empty, not missing", `ReadFile "f": open: file does not exist`, broken(func(f *faults) {
			f.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
				if info, err := f.Stat(ctx, name); err == nil && info.Size == 0 {
					return nil, &primitives.Error{Op: "open", Err: fs.ErrNotExist}
				}
				return f.Open(ctx, name)
			}
		})},
		{"Stat follows links", "Stat describes a symbolic link and does not follow it", "type: got 0x0, want 0x8000000", brokenInfo(func(ctx context.Context, f *faults, info *primitives.FileInfo) {
			if info.Target != "" {
				if target, err := f.Stat(ctx, path.Join(path.Dir(info.Path), info.Target)); err == nil {
					*info = target
				}
			}
		})},
		{"the revision never changes", "the revision changes with the content, also with content of the same length", `revision "1" came back for "two"`, brokenInfo(func(_ context.Context, _ *faults, info *primitives.FileInfo) {
			info.Revision = "1"
		})},
		{"a directory has a size", "Stat describes a directory", "size: got 4096, want 0", brokenInfo(func(_ context.Context, _ *faults, info *primitives.FileInfo) {
			info.Size = 4096
		})},
		{"a list is not sorted", "List sorts by path, byte by byte", "sorted: got false, want true", brokenList(func(infos []primitives.FileInfo, err error) ([]primitives.FileInfo, error) {
			slices.Reverse(infos)
			return infos, err
		})},
		{"a list sorts folder by folder", "List sorts by path, byte by byte", "sorted: got false, want true", brokenList(func(infos []primitives.FileInfo, err error) ([]primitives.FileInfo, error) {
			slices.SortFunc(infos, func(a, b primitives.FileInfo) int {
				return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/"))
			})
			return infos, err
		})},
		{"a list that is cut off does not say so", "List with a limit returns what fits and ErrLimit", `List: error is <nil>, want "limit was exceeded" in its chain`, brokenList(func(infos []primitives.FileInfo, _ error) ([]primitives.FileInfo, error) {
			return infos, nil
		})},
		{"a list of a missing directory is empty", "List of a missing directory is fs.ErrNotExist", `List: error is <nil>, want "file does not exist" in its chain`, brokenList(func(infos []primitives.FileInfo, _ error) ([]primitives.FileInfo, error) {
			return infos, nil
		})},
		{"hidden files are not listed", "List shows hidden files", `list: got "", want ".dir .dir/x .hidden"`, brokenList(func(infos []primitives.FileInfo, err error) ([]primitives.FileInfo, error) {
			return slices.DeleteFunc(infos, func(i primitives.FileInfo) bool { return strings.HasPrefix(i.Path, ".") }), err
		})},
		{"Remove is always recursive", "Remove of a full directory without recursive is ErrNotEmpty", `Remove: error is <nil>, want "directory not empty" in its chain`, broken(func(f *faults) {
			f.remove = func(ctx context.Context, name string, _ bool) error {
				return f.Remove(ctx, name, true)
			}
		})},
		{"Remove of a missing path succeeds", "Remove of a missing path is fs.ErrNotExist", `Remove: error is <nil>, want "file does not exist" in its chain`, broken(func(f *faults) {
			f.remove = func(ctx context.Context, name string, recursive bool) error {
				if err := f.Remove(ctx, name, recursive); !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return nil
			}
		})},
		{"Move removes what is in the way", "Move onto a directory is ErrIsDirectory", `file onto directory: error is <nil>, want "is a directory" in its chain`, broken(func(f *faults) {
			f.move = func(ctx context.Context, from, to string) error {
				err := f.Move(ctx, from, to)
				if errors.Is(err, primitives.ErrIsDirectory) {
					err = errors.Join(f.Remove(ctx, to, true), f.Move(ctx, from, to))
				}
				return err
			}
		})},
		{"Mkdir ignores the mode", "Mkdir gives the mode that was asked for", "mode: got 0x1ed, want 0x1c0", broken(func(f *faults) {
			f.mkdir = func(ctx context.Context, name string, _ fs.FileMode) error {
				return f.Mkdir(ctx, name, 0)
			}
		})},
	})
}

func writeMutants() []mutant {
	return []mutant{
		{"a write is not atomic", "a write whose source fails leaves the old content", `content: got "abcdefghijklmnopqrstuvwxyz`, broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				err := f.WriteFile(ctx, name, strings.NewReader(""), opts)
				opts.Append = true
				return errors.Join(err, f.WriteFile(ctx, name, r, opts))
			}
		})},
		{"a file that is being written is listed", "nothing of a write is seen before it is done", `listed in between: got "f f.tmp", want "f"`, broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				err := f.WriteFile(ctx, name+".tmp", strings.NewReader(""), opts)
				return errors.Join(err, f.WriteFile(ctx, name, r, opts), f.Remove(ctx, name+".tmp", false))
			}
		})},
		{"a failed write leaves a temporary file", "a write whose source fails leaves no new file", `files: got "f.tmp", want ""`, broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				err := f.WriteFile(ctx, name, r, opts)
				if err != nil {
					err = errors.Join(err, f.WriteFile(ctx, name+".tmp", strings.NewReader(""), opts))
				}
				return err
			}
		})},
		{"a failed write is no error", "a cancelled write leaves no new file", "waiting for the write to fail: want context.Canceled", broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				b, _ := io.ReadAll(r) // the fault
				return f.WriteFile(context.WithoutCancel(ctx), name, bytes.NewReader(b), opts)
			}
		})},
		{"Append replaces", "Append adds to the end", `content: got " three", want "one two three"`, brokenWrite(func(opts *primitives.WriteOptions) { opts.Append = false })},
		{"a write appends", "a second write replaces the content", `"f": read "a long first contentshort", wrote "short"`, brokenWrite(func(opts *primitives.WriteOptions) { opts.Append = opts.Mode == 0 })},
		{"Exclusive is ignored", "Exclusive refuses an existing file with fs.ErrExist", `WriteFile: error is <nil>, want "file already exists" in its chain`, brokenWrite(func(opts *primitives.WriteOptions) { opts.Exclusive = false })},
		{"IfRevision is ignored", "IfRevision refuses a file that was changed with ErrConflict", `WriteFile: error is <nil>, want "file was changed meanwhile" in its chain`, brokenWrite(func(opts *primitives.WriteOptions) { opts.IfRevision = "" })},
		{"overwriting resets the mode", "overwriting keeps the mode", "mode: got 0x1a4, want 0x1e9", brokenWrite(func(opts *primitives.WriteOptions) {
			if opts.Mode == 0 {
				opts.Mode = 0o644
			}
		})},
		{"the mode of a write is ignored", "overwriting with a mode sets it", "mode: got 0x1a4, want 0x1c0", brokenWrite(func(opts *primitives.WriteOptions) {
			if opts.Mode == 0o700 {
				opts.Mode = 0
			}
		})},
		{"a write replaces a symbolic link", "a symbolic link is written through", `target: got "old", want "new"`, broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				if info, err := f.Stat(ctx, name); err == nil && info.Target != "" {
					if err := f.Remove(ctx, name, false); err != nil {
						return err
					}
				}
				return f.WriteFile(ctx, name, r, opts)
			}
		})},
		{"a write goes into every hard link", "another hard link keeps the old content", `f: got "oldnew", want "new"`, broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				info, err := f.Stat(ctx, name)
				if err != nil || !info.Mode.IsRegular() {
					return f.WriteFile(ctx, name, r, opts)
				}
				opts.Append = true
				return f.WriteFile(ctx, name, r, opts)
			}
		})},
	}
}

// brokenPaths changes every path before it is used.
func brokenPaths(change func(f *faults, name string) string) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		p := f.EnvironmentPrimitive
		f.open = func(ctx context.Context, name string) (io.ReadCloser, error) { return p.Open(ctx, change(f, name)) }
		f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
			return p.WriteFile(ctx, change(f, name), r, opts)
		}
		f.stat = func(ctx context.Context, name string) (primitives.FileInfo, error) {
			info, err := p.Stat(ctx, change(f, name))
			info.Path = name
			return info, err
		}
		f.remove = func(ctx context.Context, name string, recursive bool) error {
			return p.Remove(ctx, change(f, name), recursive)
		}
		f.move = func(ctx context.Context, from, to string) error { return p.Move(ctx, change(f, from), change(f, to)) }
	})
}

// brokenUnpack changes what is unpacked, and the result.
func brokenUnpack(unpack func(ctx context.Context, f *faults, dir string, archive []byte) error) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.unpack = func(ctx context.Context, dir string, r io.Reader) error {
			archive, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			return unpack(ctx, f, dir, archive)
		}
	})
}

// eachEntry calls do with each entry of an archive until do fails.
func eachEntry(archive []byte, do func(h *tar.Header, content io.Reader) error) error {
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(h, in)
		}
		if err != nil {
			return err
		}
	}
}

// blamedReader returns an error of the reader when a write fails because its sandbox ended.
func blamedReader(end error) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
			err := f.WriteFile(ctx, name, r, opts)
			if errors.Is(err, end) {
				err = &primitives.Error{Op: "write", Target: name, Err: io.ErrUnexpectedEOF}
			}
			return err
		}
	})
}

func unpackMutants() []mutant {
	whole := func(ctx context.Context, f *faults, dir string, archive []byte) error {
		return primitives.Unpack(ctx, f.EnvironmentPrimitive, dir, bytes.NewReader(archive))
	}
	return []mutant{
		{"a write whose sandbox is terminated is cut off", "what is being written when the sandbox is terminated is ErrTerminated", `unexpected EOF, want "sandbox is terminated" in its chain`, blamedReader(primitives.ErrTerminated)},
		{"a write whose handle is closed is cut off", "what is being written when the handle is closed is ErrUnavailable", `unexpected EOF, want "sandbox is unavailable" in its chain`, blamedReader(primitives.ErrUnavailable)},
		{"Unpack waits for its reader when the handle is closed", "what is being written when the handle is closed is ErrUnavailable", inVain + " for all writes to end", broken(func(f *faults) {
			f.unpack = func(ctx context.Context, dir string, r io.Reader) error {
				archive, err := io.ReadAll(r)
				if err != nil {
					return err
				}
				return primitives.Unpack(ctx, f.EnvironmentPrimitive, dir, bytes.NewReader(archive))
			}
		})},
		{"Unpack knows no holes", "Unpack takes files without their holes, as GNU tar packs them", "content is whole: got false", brokenUnpack(func(ctx context.Context, f *faults, dir string, archive []byte) error {
			return whole(ctx, f, dir, bytes.ReplaceAll(archive, []byte("GNU.sparse."), []byte("XXX.sparse.")))
		})},
		{"Unpack refuses links to absolute paths", "Unpack keeps the targets of links, wherever they lead", `error: got &primitives.Error{Op:"unpack"`, brokenUnpack(func(ctx context.Context, f *faults, dir string, archive []byte) error {
			err := eachEntry(archive, func(h *tar.Header, _ io.Reader) error {
				if path.IsAbs(h.Linkname) {
					return &primitives.Error{Op: "unpack", Err: primitives.ErrPathEscape}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return whole(ctx, f, dir, archive)
		})},
		{"Unpack follows the links of its archive", "Unpack writes nothing through a link of its own archive that leads out", `error is <nil>, want "path leads out of the workspace" in its chain`, brokenUnpack(func(ctx context.Context, f *faults, dir string, archive []byte) error {
			err := whole(ctx, f, dir, archive)
			if !errors.Is(err, primitives.ErrPathEscape) {
				return err
			}
			return eachEntry(archive, func(h *tar.Header, content io.Reader) error {
				if h.Typeflag != tar.TypeReg {
					return nil
				}
				return f.WriteFile(ctx, path.Join(f.Paths().Workspace, dir, h.Name), content, primitives.WriteOptions{})
			})
		})},
	}
}

func pathMutants() []mutant {
	escape := func(f *faults, name string) string {
		if path.IsAbs(name) || strings.Contains(name, "\x00") {
			return name
		}
		return f.Paths().Workspace + "/" + name
	}
	return []mutant{
		{"a relative path may leave the workspace when reading", "Open refuses a relative path that leaves the workspace", `/workspace/..: is a directory, want "path leads out of the workspace" in its chain`, brokenPaths(escape)},
		{"a relative path may leave the workspace when writing", "WriteFile refuses a relative path that leaves the workspace", `/workspace/..: is a directory, want "path leads out of the workspace" in its chain`, brokenPaths(escape)},
		{"a relative path may leave the workspace when removing", "Remove refuses a relative path that leaves the workspace", `the path must end in the name of the directory, want "path leads out of the workspace" in its chain`, brokenPaths(escape)},
		{"a relative path may leave the workspace when moving", "Move to refuses a relative path that leaves the workspace", `: is a directory, want "path leads out of the workspace" in its chain`, brokenPaths(escape)},
		{"a link may lead out of the workspace", "a file that is a link out of the workspace is ErrPathEscape", `link": no error`, brokenPaths(escape)},
		{"a path that leads out behind a missing folder is missing", "Open refuses a relative path that leaves the workspace", `no such file or directory, want "path leads out of the workspace" in its chain`, broken(func(f *faults) {
			f.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
				r, err := f.Open(ctx, name)
				if first, _, _ := strings.Cut(name, "/../"); errors.Is(err, primitives.ErrPathEscape) {
					if _, serr := f.Stat(ctx, first); errors.Is(serr, fs.ErrNotExist) {
						return r, serr
					}
				}
				return r, err
			}
		})},
		{"a refused write makes folders", "WriteFile refuses a relative path that leaves the workspace", "a folder on the way out: <nil>, want file does not exist", broken(func(f *faults) {
			f.write = func(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
				err := f.WriteFile(ctx, name, r, opts)
				if first, _, out := strings.Cut(name, "/../"); out && errors.Is(err, primitives.ErrPathEscape) {
					_ = f.Mkdir(ctx, first, 0) // the fault
				}
				return err
			}
		})},
		{"a path is decoded like a URL", "a path is not decoded like a URL", "open test%46.txt: no such file or directory", brokenPaths(func(_ *faults, name string) string {
			if decoded, err := url.PathUnescape(name); err == nil {
				return decoded
			}
			return name
		})},
		{"a path is trimmed", "names with blanks around can be used", `list with a : got "a", want "a "`, brokenPaths(func(_ *faults, name string) string { return strings.TrimSpace(name) })},
		{"a path is made valid UTF-8", "names with invalid UTF-8 can be used", "list with \xfe: got \"_\", want \"\\xfe\"", brokenPaths(func(_ *faults, name string) string { return strings.ToValidUTF8(name, "_") })},
		{"backslashes separate paths", "names with punctuation can be used", "list with !\"#$%&", brokenPaths(func(_ *faults, name string) string { return strings.ReplaceAll(name, `\`, "/") })},
	}
}
