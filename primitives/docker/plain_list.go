package docker

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Stat implements primitives.Files.
func (p *plain) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	info, err := p.stat(ctx, name)
	if err != nil {
		return primitives.FileInfo{}, p.fail("stat", name, err)
	}
	return info, nil
}

func (p *plain) stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	text, err := p.onPath(ctx, "show", name)
	if err != nil {
		return primitives.FileInfo{}, err
	}
	line, target, _ := strings.Cut(text, "\n")
	info, _, err := fileInfo(line)
	info.Path = name
	if info.Mode.Type() == fs.ModeSymlink {
		info.Target = target
	}
	return info, err
}

// statFields are those of format in plain/control.sh.
const statFields = 7

// fileInfo reads what stat has printed, and returns what follows it.
func fileInfo(record string) (info primitives.FileInfo, rest string, err error) {
	fields := strings.SplitN(record, "|", statFields+1)
	if len(fields) < statFields {
		return info, "", fmt.Errorf("%w: stat printed %q", errImage, record)
	}
	if len(fields) > statFields {
		rest = fields[statFields]
	}
	mode, err := strconv.ParseUint(fields[0], 16, 32)
	if err == nil {
		info.Size, err = strconv.ParseInt(fields[1], 10, 64)
	}
	if err == nil {
		info.UID, err = strconv.Atoi(fields[2])
	}
	if err == nil {
		info.GID, err = strconv.Atoi(fields[3])
	}
	if err == nil {
		info.ModTime, err = time.Parse("2006-01-02 15:04:05.999999999 -0700", fields[5])
	}
	if err != nil {
		return info, "", fmt.Errorf("%w: stat printed %q: %w", errImage, record, err)
	}
	info.ModTime = info.ModTime.UTC()
	info.Mode = fileMode(uint32(mode))
	if info.Mode.IsRegular() {
		info.Revision = strings.Join(fields[:statFields], "|")
	} else {
		info.Size = 0
	}
	return info, rest, nil
}

// fileMode is the mode of Linux as io/fs has it.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & 0o170000 {
	case 0o040000:
		m |= fs.ModeDir
	case 0o120000:
		m |= fs.ModeSymlink
	case 0o010000:
		m |= fs.ModeNamedPipe
	case 0o140000:
		m |= fs.ModeSocket
	case 0o020000:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case 0o060000:
		m |= fs.ModeDevice
	}
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// List implements primitives.Files.
func (p *plain) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	infos, err := p.list(ctx, dir, opts)
	return infos, p.fail("list", dir, err)
}

func (p *plain) list(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	depth, err := listDepth(opts)
	if err != nil {
		return nil, err
	}
	infos, err := p.walk(ctx, dir, depth)
	if err != nil {
		return nil, err
	}
	if opts.Pattern != "" {
		infos = slices.DeleteFunc(infos, func(i primitives.FileInfo) bool {
			return !doublestar.MatchUnvalidated(opts.Pattern, i.Path)
		})
	}
	if opts.Limit > 0 && len(infos) > opts.Limit {
		return infos[:opts.Limit], fmt.Errorf("%w: the folder has more than %d entries", primitives.ErrLimit, opts.Limit)
	}
	return infos, nil
}

// listDepth is how deep to look, -1 for no limit.
func listDepth(opts primitives.ListOptions) (int, error) {
	switch {
	case opts.Limit < 0:
		return 0, fmt.Errorf("%w: Limit is negative; zero means all", fs.ErrInvalid)
	case opts.Depth < -1:
		return 0, fmt.Errorf("%w: Depth is %d; -1 means everything", fs.ErrInvalid, opts.Depth)
	case opts.Pattern != "" && !doublestar.ValidatePattern(opts.Pattern):
		return 0, fmt.Errorf("%w: the pattern %q is malformed", fs.ErrInvalid, opts.Pattern)
	case opts.Depth != 0:
		return opts.Depth, nil
	case strings.Contains(opts.Pattern, "**"):
		return -1, nil
	}
	return strings.Count(opts.Pattern, "/") + 1, nil
}

// walk describes everything below a directory, sorted.
func (p *plain) walk(ctx context.Context, dir string, depth int) ([]primitives.FileInfo, error) {
	if dir == "" {
		dir = "."
	}
	records, err := p.records(ctx, "list", dir, depth)
	if err != nil {
		return nil, err
	}
	infos := make([]primitives.FileInfo, 0, len(records))
	links := false
	for _, r := range records {
		info, name, err := fileInfo(strings.TrimSuffix(r, "\n"))
		if err != nil {
			return nil, err
		}
		info.Path = strings.TrimPrefix(name, "./")
		links = links || info.Mode.Type() == fs.ModeSymlink
		infos = append(infos, info)
	}
	if links {
		if err := p.addTargets(ctx, dir, depth, infos); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(infos, func(a, b primitives.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return infos, nil
}

// addTargets adds where links point.
func (p *plain) addTargets(ctx context.Context, dir string, depth int, infos []primitives.FileInfo) error {
	records, err := p.records(ctx, "links", dir, depth)
	if err != nil {
		return err
	}
	targets := map[string]string{}
	for i := 0; i+1 < len(records); i += 2 {
		targets[strings.TrimPrefix(records[i], "./")] = records[i+1]
	}
	for i := range infos {
		if infos[i].Mode.Type() == fs.ModeSymlink {
			infos[i].Target = targets[infos[i].Path]
		}
	}
	return nil
}

// records returns what a request prints about files: before each record stands the
// shell's tag, because names may hold anything else.
func (p *plain) records(ctx context.Context, request, dir string, depth int) ([]string, error) {
	if err := checkPath(ctx, dir); err != nil {
		return nil, err
	}
	s, err := p.takeShell(ctx, "")
	if err != nil {
		return nil, err
	}
	text, status, err := s.do(ctx, request, p.paths.Workspace, dir, strconv.Itoa(depth))
	if err != nil {
		p.breakShell(ctx, s, err)
		return nil, p.explain(ctx, err)
	}
	tag := s.tag
	p.giveShell(s)
	if err := statusError(status, text); err != nil {
		return nil, err
	}
	return strings.Split(text, tag+"|")[1:], nil
}
