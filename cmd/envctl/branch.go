package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// fetchFlags are the flags of fetch.
type fetchFlags struct {
	target
	folder string
}

func (a *app) newFetchCmd() *cobra.Command {
	f := &fetchFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "fetch [flags] ID BRANCH",
		Short: "Bring the commits of a sandbox to a branch",
		Long: `Bring the commits of a sandbox to a branch of a repository of this machine, with their
authors and messages, and what is not committed there as one more commit. The branch is made
if it is not there, and otherwise only moved forward. No file of the folder changes, and no
branch that is checked out. Nothing of the sandbox's repository but its objects is used, and
git checks those; the sandbox needs no git.

ID is that of a sandbox, or of a session of 'envctl sessions ls', also when its sandbox has
ended: then its last checkpoint is read. 'envctl run --branch' does this at the end of a run.`,
		Example: `  id=$(envctl run --agent claude --folder . --keep "Fix the failing test and commit" | tail -n 1)
  envctl fetch $id fix && git log -p ..fix
  envctl fetch --folder ../project $id fix`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), args[0], args[1])
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.folder, "folder", ".", "the repository of this machine that gets the branch")
	cmd.ValidArgsFunction = f.completeIDs(1)
	return cmd
}

func (f *fetchFlags) run(ctx context.Context, id, branch string) (err error) {
	if err := checkBranch(ctx, "", f.folder, branch); err != nil {
		return err
	}
	var env *environment.Environment
	if f.app.server != "" {
		env, err = f.served(ctx, id)
	} else {
		env, err = f.attachSession(ctx, id)
	}
	if ended, ok := errors.AsType[*endedError](err); ok {
		env, err = f.restored(ctx, ended.session)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	_, err = f.app.fetchBranch(ctx, env, f.folder, branch)
	return err
}

// restored returns an environment with the files of a session whose sandbox has ended; see withFiles.
func (f *fetchFlags) restored(ctx context.Context, id string) (env *environment.Environment, err error) {
	err = f.app.withSession(ctx, id, func(st *sqlite.Store, rec store.Record) error {
		of, err := session.Stored(ctx, st, rec.ID)
		if err != nil {
			return err
		}
		env, err = f.app.withFiles(ctx, of.Environment.IgnoreChanges, storedFiles{st, rec.ID})
		return err
	})
	return env, err
}

// served returns an environment with the files that a session of the server has now, see withFiles, or a sandbox of the server.
func (f *fetchFlags) served(ctx context.Context, id string) (*environment.Environment, error) {
	s, err := f.app.servedSession(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		f.app.sandboxServer = f.app.server
		if env, aerr := f.attach(ctx, id); !errors.Is(aerr, errNoSandbox) {
			return env, aerr
		}
	}
	if err != nil {
		return nil, err
	}
	defer f.app.status.Busy("getting the workspace from the server")()
	if _, err := s.Sync(ctx); err != nil {
		return nil, err
	}
	return f.app.withFiles(ctx, nil, s)
}

// checkBranch returns, before a run, the errors of --branch that are known then.
func (f *runFlags) checkBranch(ctx context.Context) error {
	switch {
	case f.branch == "":
		return nil
	case f.staysOnHost:
		return usagef("--branch: the agent works in your folder itself, and commits there; leave it out")
	case f.source == nil:
		return usagef("--branch makes a branch in the repository of --folder, which must be all that is in the workspace; give --folder")
	case !f.source.History:
		return usagef("--branch needs the history in the sandbox; leave --history=false out, or set history in the configuration")
	}
	return checkBranch(ctx, "--branch: ", f.source.Path, f.branch)
}

// checkBranch returns an error if a branch of a folder cannot receive commits.
func checkBranch(ctx context.Context, flag, folder, branch string) error {
	if err := environment.CheckBranch(ctx, folder, branch); err != nil {
		return usagef("%s%w", flag, err)
	}
	return nil
}

// fetchBranch brings the work in a sandbox to a branch, and prints what came. It reports whether all
// of it came.
func (a *app) fetchBranch(ctx context.Context, env *environment.Environment, folder, name string) (all bool, err error) {
	b, err := env.FetchBranch(ctx, folder, name)
	if err != nil {
		return false, err
	}
	if b.Commit == "" {
		err = a.err.Println(term.Dim("nothing for the branch: no commit and no change"))
	} else {
		err = a.err.Row(term.Plain(fmt.Sprintf("branch %s: %s; see them with 'git log -p ..%s'", b.Name, plural(b.Commits, "commit"), shellQuoted(b.Name))))
	}
	if len(b.LeftOut) == 0 {
		return true, err
	}
	return false, errors.Join(err, a.err.Row(term.Plain(fmt.Sprintf("not on the branch, because of a submodule or a git filter: %s", firstNames(b.LeftOut)))))
}
