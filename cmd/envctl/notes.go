package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

// noteIgnored prints how many files the last export of the workspace left out.
func (a *app) noteIgnored(of interface{ Ignored() int }) error {
	if n := of.Ignored(); n > 0 {
		return a.err.Println(term.Dim("left out: " + plural(n, "new file") + " that git ignores"))
	}
	return nil
}

// notePatch prints what a patch of the changes does not carry, and with which command git takes
// it if a plain "git apply" does not; command is empty if it was printed already.
func (a *app) notePatch(changes []environment.Change, command string) error {
	var filtered, converted []string
	for _, c := range changes {
		switch {
		case isAttribute(c.Filter):
			converted = append(converted, c.Path)
		case c.Filter != "":
			filtered = append(filtered, c.Path)
		}
	}
	lines := openedFiles("a patch", changes)
	if len(converted) > 0 {
		lines = append(lines, "git converts "+filesNamed(converted)+" (see Filter in envctl diff --json), so 'git apply' may refuse the patch; use --apply")
	}
	if len(filtered) > 0 && command != "" {
		lines = append(lines, "git has a filter for "+filesNamed(filtered)+", so a plain 'git apply' refuses the patch; use --apply, or:", "  "+command)
	}
	for _, line := range lines {
		if err := a.err.Row(term.Plain(line)); err != nil {
			return err
		}
	}
	return nil
}

// noteBranch prints what a branch of the changes does not carry.
func (a *app) noteBranch(ctx context.Context, env *environment.Environment) error {
	changes, err := env.Changes(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the sandbox cannot report changes
	}
	if err != nil {
		return err
	}
	errs := []error{a.noteIgnored(env)}
	for _, line := range openedFiles("a branch", changes) {
		errs = append(errs, a.err.Row(term.Plain(line)))
	}
	return errors.Join(errs...)
}

// openedFiles returns the line about files that are closed to others in the sandbox, if there are any.
func openedFiles(carrier string, changes []environment.Change) []string {
	var closed []string
	for _, c := range changes {
		if c.Kind != environment.Deleted && c.NewMode&fs.ModeSymlink == 0 && c.NewMode&0o044 != 0o044 {
			closed = append(closed, c.Path)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	return []string{carrier + " carries no mode but git's executable bit: " + filesNamed(closed) + " may be open to more users than in the sandbox; --apply keeps them closed"}
}

// isAttribute reports whether a filter is an attribute of git, which no setting switches off.
func isAttribute(filter string) bool { return filter == "ident" || strings.Contains(filter, "=") }

// withoutFilters returns the options of git that switch the filters of changes off.
func withoutFilters(changes []environment.Change) string {
	var names []string
	for _, c := range changes {
		if c.Filter != "" && !isAttribute(c.Filter) && !slices.Contains(names, c.Filter) {
			names = append(names, c.Filter)
		}
	}
	var options strings.Builder
	for _, name := range names {
		for _, setting := range []string{"clean=", "smudge=", "process=", "required=false"} {
			options.WriteString(" -c " + shellQuoted("filter."+name+"."+setting))
		}
	}
	return options.String()
}

// filesNamed returns the number of files with the names of the first ones.
func filesNamed(paths []string) string {
	return plural(len(paths), "file") + " (" + firstNames(paths) + ")"
}

// firstNames returns the first names of a list.
func firstNames(paths []string) string {
	const most = 3
	var names []string
	for _, p := range paths[:min(len(paths), most)] {
		names = append(names, cut(p, mostName))
	}
	if len(paths) > most {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}
