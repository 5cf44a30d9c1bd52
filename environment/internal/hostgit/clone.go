package hostgit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Repository is a git repository at one commit. Its fields are those of environment.Git.
type Repository struct {
	URL     string
	Ref     string
	History bool
}

// Check returns an error for a repository that is not safe to pass to git.
func (g Repository) Check() error {
	switch {
	case g.URL == "":
		return errors.New("git: url is missing")
	case strings.HasPrefix(g.URL, "-") || strings.ContainsAny(g.URL, "\x00\n"):
		return errors.New(`git: url: it must not begin with "-" or contain a line end`)
	case strings.Contains(g.URL, "::"):
		return errors.New("git: url: remote helpers (name::address) are not allowed; give an https, ssh, git or file address")
	}
	// Check the credentials first: the error for the ref names it, and it may hold the rest of a
	// password.
	if err := g.checkCredentials(); err != nil {
		return err
	}
	if strings.HasPrefix(g.Ref, "-") || strings.ContainsAny(g.Ref, "\x00\n :?*[\\^~") {
		return fmt.Errorf("git: ref: %q is not the name of a branch, a tag or a commit", g.Ref)
	}
	return nil
}

// Clone fills an empty folder with the files of the repository at its Ref. limit bounds their
// number and size.
func (g Repository) Clone(ctx context.Context, dir string, limit archive.Limit) error {
	env, address := credentialEnv(g.URL)
	git := gitCommand{dir: dir, env: env, secrets: SecretsOf(g.URL), fetches: true, limit: limit}
	if _, err := git.run(ctx, "init", "--quiet", "--template=", "--initial-branch=main"); err != nil {
		return err
	}
	if !g.History {
		if err := checkoutShallow(ctx, git, address, g.Ref); err == nil || errors.Is(err, primitives.ErrLimit) {
			return err
		}
	}
	// Fetch everything, also if a server offers neither a single commit nor a shallow history.
	if _, err := git.run(ctx, "remote", "add", "--", "origin", address); err != nil {
		return err
	}
	if _, err := git.run(ctx, "fetch", "--quiet", "--tags", "--no-recurse-submodules", "origin"); err != nil {
		return err
	}
	if err := checkoutRef(ctx, git, g.Ref); err != nil {
		return err
	}
	// Remove what reveals this machine or how the clone was made.
	for _, name := range []string{"FETCH_HEAD", "ORIG_HEAD", "logs", "hooks"} {
		if err := os.RemoveAll(filepath.Join(dir, ".git", name)); err != nil {
			return err
		}
	}
	return errors.Join(keepPacks(dir), git.setIdentity(ctx, gitCommand{dir: dir, userConfig: true}))
}

// checkoutShallow fetches one commit alone and checks it out.
func checkoutShallow(ctx context.Context, git gitCommand, address, ref string) error {
	if ref == "" {
		ref = "HEAD"
	}
	if _, err := git.run(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", address, ref); err != nil {
		return err
	}
	return git.checkout(ctx, "FETCH_HEAD", "--detach", "FETCH_HEAD")
}

// checkoutRef checks out a branch as a branch, and any other ref detached.
func checkoutRef(ctx context.Context, git gitCommand, ref string) error {
	if ref == "" {
		if _, err := git.run(ctx, "remote", "set-head", "origin", "--auto"); err != nil {
			return err
		}
		out, err := git.run(ctx, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
		if err != nil {
			return err
		}
		ref = strings.TrimPrefix(strings.TrimSpace(out), "origin/")
	}
	branch := "refs/remotes/origin/" + ref
	if _, err := git.run(ctx, "rev-parse", "--quiet", "--verify", branch); err == nil {
		return git.checkout(ctx, branch, "-B", ref, "--track", branch)
	}
	if _, err := git.run(ctx, "rev-parse", "--quiet", "--verify", ref+"^{commit}"); errors.Is(err, ErrFailed) {
		return fmt.Errorf("%w: there is no branch, tag or commit %q in the repository", ErrFailed, ref)
	}
	return git.checkout(ctx, ref, "--detach", ref, "--")
}
