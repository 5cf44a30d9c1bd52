package hostgit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
)

// Filters returns what converts files, given by their paths below dir, between the folder and its
// repository, so that "git apply" compares something else than their content: the name of a
// filter such as lfs that git is configured for, or an attribute such as
// working-tree-encoding=UTF-16. If dir does not exist, there are none. No filter is run.
func Filters(ctx context.Context, dir string, names []string) (map[string]string, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, nil
	}
	found := make(map[string]string)
	repositories := make(map[string][]string)
	for _, name := range names {
		at := innermost(dir, name)
		repositories[at] = append(repositories[at], name)
	}
	for at, names := range repositories {
		if err := filters(ctx, dir, at, names, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// filters adds those of the repository at dir/at to found.
func filters(ctx context.Context, dir, at string, names []string, found map[string]string) (err error) {
	git, done, err := readingGitAt(ctx, dir, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	git.userAttributes = true
	attributes, err := git.withPaths(at, names).run(ctx, "check-attr", "-z", "--stdin", "filter", "working-tree-encoding", "ident")
	if err != nil {
		return err
	}
	configured, err := git.run(ctx, "config", "-z", "--name-only", "--get-regexp", `^filter\..*\.(clean|smudge|process)$`)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) { // 1: there are none
		return err
	}
	fields := strings.Split(attributes, "\x00")
	for ; len(fields) >= 3; fields = fields[3:] {
		name, attribute, value := belowRepository(at, fields[0]), fields[1], fields[2]
		switch {
		case value == "unspecified" || value == "unset":
		case attribute == "ident":
			found[name] = attribute
		case attribute != "filter":
			found[name] = attribute + "=" + value
		case strings.Contains("\x00"+configured, "\x00filter."+value+"."):
			found[name] = value
		}
	}
	return nil
}
