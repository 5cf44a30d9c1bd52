package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
)

// workspaceFlags are the flags for the initial content of a new workspace.
type workspaceFlags struct {
	folder, git, tar string
	gitignore        bool
	history          bool
}

func (w *workspaceFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&w.folder, "folder", "", "copy this folder into the workspace")
	fl.BoolVar(&w.gitignore, "gitignore", true, "leave out what git ignores when copying --folder")
	fl.BoolVar(&w.history, "history", true, "bring the git history and index of --folder, if it is the top of a repository")
	fl.StringVar(&w.git, "git", "", "put the files of this git repository into the workspace, URL or URL#REF")
	fl.StringVar(&w.tar, "tar", "", "unpack this tar file into the workspace")
}

// sources returns the sources that the flags name. A folder and a tar file must exist on this
// machine.
func (w *workspaceFlags) sources() ([]environment.Source, error) {
	var list []environment.Source
	if w.folder != "" {
		if info, err := os.Stat(w.folder); err != nil || !info.IsDir() {
			return nil, usagef("--folder: %q is no folder of this machine; give an existing one", w.folder)
		}
		list = append(list, environment.Source{Folder: &environment.Folder{Path: w.folder, Gitignore: w.gitignore, History: w.history}})
	}
	if w.git != "" {
		url, ref, _ := strings.Cut(w.git, "#")
		list = append(list, environment.Source{Git: &environment.Git{URL: repository(url), Ref: ref}})
	}
	if w.tar != "" {
		if _, err := os.Stat(w.tar); err != nil {
			return nil, usagef("--tar: %w; give an existing file", err)
		}
		list = append(list, environment.Source{Tar: &environment.Tar{Path: w.tar}})
	}
	return list, nil
}

// absolute makes the paths in list absolute, because a stored session may continue in another
// working directory. It does not change the sources that list points to.
func absolute(list []environment.Source) (err error) {
	for i, src := range list {
		if src.Folder != nil {
			folder := *src.Folder
			if folder.Path, err = filepath.Abs(folder.Path); err != nil {
				return err
			}
			list[i].Folder = &folder
		}
		if src.Tar != nil && src.Tar.Path != "" {
			tar := *src.Tar
			if tar.Path, err = filepath.Abs(tar.Path); err != nil {
				return err
			}
			list[i].Tar = &tar
		}
	}
	return nil
}

// repository makes the path of a repository on this machine absolute, because
// git is not run in this program's working directory.
func repository(url string) string {
	if !repositoryIsHere(url) {
		return url
	}
	if abs, err := filepath.Abs(url); err == nil {
		return abs
	}
	return url
}

func repositoryIsHere(url string) bool {
	info, err := os.Stat(url)
	return err == nil && info.IsDir()
}
