package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// lister lists a workspace.
type lister struct {
	files  primitives.Files
	skip   func(path string) bool // may be nil
	infos  []primitives.FileInfo
	denied string // says which folder cannot be read; empty if all can
}

// list returns the files, folders and links that are not left out, sorted by path.
func (l *lister) list(ctx context.Context) ([]primitives.FileInfo, error) {
	if err := l.below(ctx, "."); err != nil {
		return nil, err
	}
	slices.SortFunc(l.infos, func(a, b primitives.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	for i := range l.infos {
		if i > 0 && l.infos[i-1].Path == l.infos[i].Path {
			return nil, fmt.Errorf("%q is listed twice: %w", l.infos[i].Path, fs.ErrInvalid)
		}
	}
	return l.infos, nil
}

// below lists a folder. What does not fit into one listing is listed folder by folder.
func (l *lister) below(ctx context.Context, dir string) error {
	infos, err := l.all(ctx, dir, -1)
	if !errors.Is(err, primitives.ErrLimit) {
		if err == nil {
			err = l.add(dir, infos, nil)
		}
		return err
	}
	if infos, err = l.all(ctx, dir, 1); err != nil {
		return err
	}
	var folders []string
	if err := l.add(dir, infos, &folders); err != nil {
		return err
	}
	for _, folder := range folders {
		if err := l.below(ctx, folder); err != nil {
			return err
		}
	}
	return nil
}

// all is List, which remembers if a folder cannot be read.
func (l *lister) all(ctx context.Context, dir string, depth int) ([]primitives.FileInfo, error) {
	infos, err := l.files.List(ctx, dir, primitives.ListOptions{Depth: depth, Strict: true})
	if errors.Is(err, fs.ErrPermission) {
		l.denied = err.Error()
		infos, err = l.files.List(ctx, dir, primitives.ListOptions{Depth: depth})
	}
	return infos, err
}

// add adds the listing of a folder, and its folders to folders, without what is left out. It checks the paths, which
// come from the sandbox.
func (l *lister) add(dir string, infos []primitives.FileInfo, folders *[]string) error {
	out := make(map[string]bool) // folders that are left out
	for _, info := range infos {
		if strings.HasPrefix(info.Path, "/") || !validName(path.Base(info.Path)) || path.Clean(info.Path) != info.Path || LeadsOut(info.Path) {
			return fmt.Errorf("%q: %w", info.Path, primitives.ErrPathEscape)
		}
		info.Path = path.Join(dir, info.Path)
		if l.skip != nil && (out[path.Dir(info.Path)] || l.skip(info.Path)) {
			out[info.Path] = true
			continue
		}
		if info.IsDir() && folders != nil {
			*folders = append(*folders, info.Path)
		}
		if info.IsDir() || info.Mode.IsRegular() || info.Mode&fs.ModeSymlink != 0 {
			info.Mode &= fs.ModeType | fs.ModePerm
			l.infos = append(l.infos, info)
		}
		if int64(len(l.infos)) > Limit.MaxEntries() {
			return fmt.Errorf("%w: the workspace has more than %d files, folders and links; %s", primitives.ErrLimit, Limit.MaxEntries(), Limit.Advice)
		}
	}
	return nil
}
