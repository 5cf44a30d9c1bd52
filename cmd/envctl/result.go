package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Bounds of the patches that are saved by default.
const (
	patchesFolder = "patches"
	maxPatch      = 256 << 20 // bytes of one
	maxPatches    = 1 << 30   // bytes of all
	mostPatches   = 100
	patchAge      = 30 * 24 * time.Hour // gc removes older ones
)

// outcome is what has the changes of a run: a sandbox, or a session of a server.
type outcome interface {
	ID() string
	Changes(ctx context.Context) ([]environment.Change, error)
	Patch(ctx context.Context, w io.Writer) error
	// Ignored returns how many new files the last export left out because git ignores them.
	Ignored() int
}

// bringOut exports the changes of the workspace as the flags say. Without such flags it saves
// them as a patch, so that the agent's work is not lost with the sandbox.
func (f *runFlags) bringOut(ctx context.Context, env *environment.Environment, failed error) (err error) {
	if f.patch != "" {
		err = f.writePatch(ctx, env)
	}
	brought := false // as a branch
	if f.branch != "" {
		var fetched error
		brought, fetched = f.app.fetchBranch(ctx, env, f.source.Path, f.branch)
		err = errors.Join(err, fetched)
	}
	switch {
	case f.apply && failed == nil:
		return errors.Join(err, f.applyChanges(ctx, env))
	case f.apply && !f.keep:
		fmt.Fprintln(f.app.err, "nothing was applied, because the run failed")
	case brought && f.patch == "":
		return errors.Join(err, f.app.noteBranch(ctx, env))
	case f.patch != "" || f.keep || f.staysOnHost:
		return err
	}
	saved := f.savePatch(ctx, env)
	if failed != nil && (errors.Is(saved, primitives.ErrUnavailable) || errors.Is(saved, primitives.ErrTerminated)) {
		fmt.Fprintln(f.app.err, "what changed in the workspace is lost with the sandbox")
		saved = nil // failed has the cause
	}
	return errors.Join(err, saved)
}

// applyChanges applies the changes to the folder that the workspace was copied from. If that
// fails and the sandbox is not kept, it saves them as a patch.
func (f *runFlags) applyChanges(ctx context.Context, env *environment.Environment) error {
	changes, err := env.Apply(ctx, *f.source)
	switch {
	case err != nil && f.keep:
		return err
	case err != nil:
		return errors.Join(err, f.savePatch(ctx, env))
	}
	if err := f.app.noteIgnored(env); err != nil {
		return err
	}
	if len(changes) > 0 {
		return f.app.err.Row(term.Plain("applied: " + counted(changes)))
	}
	if changes, err := env.Changes(ctx); err == nil && len(changes) > 0 {
		return f.app.err.Println(term.Dim("nothing to apply: the folder has the changes already, or files were only opened to more users"))
	}
	return f.app.err.Println(term.Dim("nothing changed in the workspace"))
}

// savePatch saves the changes as a patch in this user's state folder, and prints the command
// that applies it.
func (f *runFlags) savePatch(ctx context.Context, of outcome) (err error) {
	changes, err := of.Changes(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the sandbox cannot report changes
	}
	if err != nil {
		return err
	}
	if err := f.app.noteIgnored(of); err != nil || len(changes) == 0 {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, and could not be saved; next time give --patch FILE or --keep: %w", counted(changes), err)
		}
	}()
	root, err := statedir.Open(patchesFolder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name := time.Now().Format("20060102-150405-") + filepath.Base(of.ID()) + ".patch"
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := &boundedWriter{w: file, left: maxPatch}
	err = errors.Join(of.Patch(ctx, w), file.Close())
	if err != nil {
		return errors.Join(err, root.Remove(name))
	}
	if w.left == maxPatch { // only permissions changed that git does not record
		return errors.Join(root.Remove(name), f.app.notePatch(changes, ""))
	}
	return errors.Join(
		f.app.err.Row(term.Plain(counted(changes)+"; to have that here:")),
		f.app.err.Row(term.Plain("  "+f.applyCommand(filepath.Join(root.Name(), name), changes))),
		f.app.notePatch(changes, ""),
		statedir.Prune(root, mostPatches, maxPatches),
	)
}

// applyCommand returns the shell command that applies a patch to the folder of the run.
func (f *runFlags) applyCommand(patch string, changes []environment.Change) string {
	folder := "."
	if f.source != nil {
		folder = f.source.Path
	}
	if abs, err := filepath.Abs(patch); err == nil && patch != "-" {
		patch = abs
	}
	return applyCommand(folder, patch, withoutFilters(changes))
}

// applyCommand returns the shell command that applies a patch to a folder, with options of git. In
// a repository, git apply takes the paths of a patch from the top of the repository, and silently
// skips files outside the current folder.
func applyCommand(folder, patch, options string) string {
	apply := " apply "
	if abs, err := filepath.Abs(folder); err == nil {
		for top := abs; ; top = filepath.Dir(top) {
			if _, err := os.Lstat(filepath.Join(top, ".git")); err == nil {
				if below, err := filepath.Rel(top, abs); err == nil && below != "." {
					folder, apply = top, " apply --directory="+shellQuoted(below)+" "
				}
				break
			}
			if top == filepath.Dir(top) {
				break
			}
		}
	}
	if filepath.Clean(folder) != "." {
		options += " -C " + shellQuoted(folder)
	}
	return "git" + options + apply + shellQuoted(patch)
}

// boundedWriter fails beyond left bytes.
type boundedWriter struct {
	w    io.Writer
	left int64
}

// Write implements io.Writer.
func (b *boundedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, fmt.Errorf("%w: the patch has more than %d MiB", primitives.ErrLimit, maxPatch>>20)
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	return n, err
}

// counted returns how many files changed, with the names of the first ones.
func counted(changes []environment.Change) string {
	var paths []string
	for _, c := range changes {
		paths = append(paths, c.Path)
	}
	return plural(len(paths), "file") + " changed (" + firstNames(paths) + ")"
}

// shellQuoted returns text as one word of the shell.
func shellQuoted(text string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%"
	if text != "" && strings.Trim(text, safe) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// collectPatches removes old saved patches, and returns them. With dryRun it removes none.
func collectPatches(dryRun bool) (removed []environment.Garbage, err error) {
	root, err := statedir.Open(patchesFolder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < patchAge {
			continue // removed by another program, or not old enough
		}
		if !dryRun {
			if err := root.Remove(e.Name()); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed = append(removed, environment.Garbage{
			Type: "-", Garbage: primitives.Garbage{
				Kind: "patch", ID: filepath.Join(root.Name(), e.Name()), Created: info.ModTime(), Why: "it was saved more than 30 days ago",
			},
		})
	}
	return removed, errors.Join(errs...)
}
