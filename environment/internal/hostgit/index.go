package hostgit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrMerging means that a merge in the folder has not ended: the index has conflicts, or the next
// commit would be a merge.
var ErrMerging = errors.New("a merge has not ended in the folder; commit or abort it, or copy the folder without history")

// indexEntry is an entry of an index.
type indexEntry struct {
	mode, object, name string
	assumed            bool // assume-unchanged
	skipped            bool // skip-worktree
}

func (e indexEntry) isSubmodule() bool { return e.mode == "160000" }

// entries returns the index. An index with conflicts is [ErrMerging].
func (g gitCommand) entries(ctx context.Context) ([]indexEntry, error) {
	out, err := g.run(ctx, "ls-files", "-s", "-v", "-z")
	if err != nil {
		return nil, err
	}
	var list []indexEntry
	for _, text := range fields(out) {
		about, name, _ := strings.Cut(text, "\t")
		f := strings.Fields(about) // tag, mode, object, stage
		if len(f) != 4 {
			return nil, fmt.Errorf("%w: git ls-files printed %q", ErrFailed, text)
		}
		if f[3] != "0" {
			return nil, fmt.Errorf("%w (%s has a conflict)", ErrMerging, name)
		}
		list = append(list, indexEntry{
			mode: f[1], object: f[2], name: name, assumed: f[0] == strings.ToLower(f[0]), skipped: strings.EqualFold(f[0], "s"),
		})
	}
	return list, nil
}

// fields splits what git prints with -z.
func fields(out string) []string {
	if out == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
}

// joined is the opposite of fields.
func joined(names []string) *strings.Reader {
	if len(names) == 0 {
		return strings.NewReader("")
	}
	return strings.NewReader(strings.Join(names, "\x00") + "\x00")
}

// index copies the index: what is staged, what "git add -N" has announced, and what git skips.
func (c *copying) index(ctx context.Context) error {
	merging, err := c.from.commitOf(ctx, "MERGE_HEAD")
	if err != nil {
		return err
	}
	if merging != "" {
		return ErrMerging
	}
	entries, err := c.from.entries(ctx)
	if err != nil {
		return err
	}
	announced, err := c.announced(ctx, entries)
	if err != nil {
		return err
	}
	var names, add, skip, assume []string
	for _, e := range entries {
		names = append(names, e.name)
	}
	filtered, err := c.from.filtered(ctx, names)
	if err != nil {
		return err
	}
	var info []string
	for _, e := range entries {
		switch {
		case announced[e.name]:
			if _, err := os.Lstat(filepath.Join(c.from.dir, filepath.FromSlash(e.name))); err == nil {
				add = append(add, e.name)
			}
			continue
		case e.skipped, filtered[e.name], c.left != nil && c.left(e.name):
			skip = append(skip, e.name)
		}
		if e.assumed {
			assume = append(assume, e.name)
		}
		info = append(info, e.mode+" "+e.object+" 0\t"+e.name)
	}
	for _, step := range []struct {
		names []string
		args  []string
	}{
		{info, []string{"update-index", "-z", "--index-info"}},
		{skip, []string{"update-index", "-z", "--skip-worktree", "--stdin"}},
		{assume, []string{"update-index", "-z", "--assume-unchanged", "--stdin"}},
		// This looks at the files of the work tree, and reads none.
		{add, []string{"--work-tree=" + c.from.dir, "--literal-pathspecs", "add", "-N", "-f", "--pathspec-from-file=-", "--pathspec-file-nul"}},
	} {
		if len(step.names) == 0 {
			continue
		}
		to := c.to
		to.input = joined(step.names)
		if _, err := to.run(ctx, step.args...); err != nil {
			return err
		}
	}
	return nil
}

// announced returns the entries of "git add -N". They look like empty files, which HEAD does not
// have and which are no change of the index. "git diff-files" names them, too, but may run filters.
func (c *copying) announced(ctx context.Context, entries []indexEntry) (map[string]bool, error) {
	empty := c.from
	empty.input = strings.NewReader("")
	object, err := empty.run(ctx, "hash-object", "--stdin", "-t", "blob")
	if err != nil {
		return nil, err
	}
	found := make(map[string]bool)
	for _, e := range entries {
		if e.object == line(object) {
			found[e.name] = true
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	tree := c.head
	if tree == "" {
		empty.input = strings.NewReader("")
		none, err := empty.run(ctx, "hash-object", "--stdin", "-t", "tree")
		if err != nil {
			return nil, err
		}
		tree = line(none)
	}
	for _, list := range [][]string{
		{"ls-tree", "-r", "-z", "--name-only", "--full-tree", tree},
		{"diff-index", "--cached", "--ita-invisible-in-index", "--no-renames", "--ignore-submodules=all", "--diff-filter=A", "--name-only", "-z", tree},
	} {
		out, err := c.from.run(ctx, list...)
		if err != nil {
			return nil, err
		}
		for _, name := range fields(out) {
			delete(found, name)
		}
	}
	return found, nil
}

// filtered returns which of some files have a filter, by the attributes of the repository. args
// are those of git check-attr.
func (g gitCommand) filtered(ctx context.Context, names []string, args ...string) (map[string]bool, error) {
	g.input = joined(names)
	out, err := g.run(ctx, append(append([]string{"check-attr", "-z", "--stdin"}, args...), "filter")...)
	if err != nil {
		return nil, err
	}
	list := fields(out) // name, attribute and value, in turn
	found := make(map[string]bool)
	for i := 0; i+2 < len(list); i += 3 {
		if value := list[i+2]; value != "unspecified" && value != "unset" {
			found[list[i]] = true
		}
	}
	return found, nil
}
