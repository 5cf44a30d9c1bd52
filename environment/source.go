package environment

import (
	"io"
	"io/fs"
)

// Source is one thing that a workspace starts with. Exactly one of Files,
// Folder, Git and Tar is set.
type Source struct {
	// Into is the folder of the workspace that takes the source, relative and
	// made if it is missing. Empty means the workspace itself.
	Into string `json:"into,omitempty"`

	Files  []File  `json:"files,omitempty"`  // given here
	Folder *Folder `json:"folder,omitempty"` // a folder of this machine
	Git    *Git    `json:"git,omitempty"`    // a git repository
	Tar    *Tar    `json:"tar,omitempty"`    // a tar archive

	config string // the file that it was read from; empty for none
}

// File is a file that is given inline.
type File struct {
	// Path is relative to Source.Into.
	Path string `json:"path"`
	// Content is the file's bytes.
	Content string `json:"content"`
	// Mode is its permission; zero means 0644.
	Mode fs.FileMode `json:"mode,omitempty"`
}

// Folder is a folder of this machine that is copied into the workspace: regular
// files, folders, and symbolic links as they are, wherever they lead. FIFOs, sockets
// and devices are an error unless they are ignored.
type Folder struct {
	Path string `json:"path"`
	// Ignore leaves out what matches one of these patterns, in the syntax of
	// primitives.WatchOptions.Ignore.
	Ignore []string `json:"ignore,omitempty"`
	// Gitignore copies what git would: tracked files, and untracked ones that
	// no .gitignore, .git/info/exclude or global ignore file leaves out; never
	// the folder .git. It needs git on this machine, and works in a folder
	// that is not a repository, too. A repository that git does not read, such
	// as one of another user that is no safe.directory, is an error, and so is
	// one that lacks an object of a .gitignore: nothing is fetched. No command
	// that the repository names is run.
	Gitignore bool `json:"gitignore,omitempty"`
}

// Git is a git repository whose files at one commit are put into the workspace.
// It is cloned on this machine with git, without running any of its hooks and
// without asking for credentials.
type Git struct {
	// URL is an https, ssh or git address, or a path of this machine. A
	// password in it is percent-encoded: # is %23, / is %2F, % is %25, @ is %40.
	URL string `json:"url"`
	// Ref is a branch, a tag or a full commit id. Empty means the
	// repository's default branch.
	Ref string `json:"ref,omitempty"`
	// History puts the folder .git into the workspace, too, with the whole
	// history and with the URL, stripped of credentials, as its remote.
	History bool `json:"history,omitempty"`
}

// Tar is a tar archive, plain or compressed with gzip. Links are kept as they are. An
// entry that leads out of the folder that takes it, by its name or through a link, is
// refused.
type Tar struct {
	// Path is a file of this machine.
	Path string `json:"path,omitempty"`
	// Reader is read instead of a file, once.
	Reader io.Reader `json:"-"`
}
