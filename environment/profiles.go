package environment

import (
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// ProfileInfo describes a profile that a configuration can name.
type ProfileInfo struct {
	Name string `json:"name"`
	// Path is the profile's file or folder.
	Path        string `json:"path"`
	Description string `json:"description,omitempty"`
	// Problem is why the profile cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// Profiles lists the profiles that a configuration can name, sorted by name: those in the folder
// profiles beside the configuration file, then those in the folder agentenv/profiles of the
// user's configuration (os.UserConfigDir). If two have the same name, the first one counts.
// config is the configuration file; empty for none.
//
// A profile is a file, such as reviewer.yaml, or a folder, as for [LoadProfile]. The same folders
// have the executor profiles, which [Executors] lists.
func Profiles(config string) ([]ProfileInfo, error) {
	entries, err := catalog(config).Entries()
	if err != nil {
		return nil, err
	}
	list := make([]ProfileInfo, 0, len(entries))
	for _, e := range entries {
		info := ProfileInfo{Name: e.Name, Path: e.Path}
		p, err := LoadProfile(e.Path)
		if err != nil {
			info.Problem = err.Error()
		}
		info.Description = p.Description
		list = append(list, info)
	}
	return list, nil
}

// FindProfile reads a profile by its name in [Profiles] or by its path, as [LoadProfile] does. A
// path has a slash or an extension: ./reviewer, reviewer.yaml. For an unknown name the error is
// [ErrConfig] and lists the known names.
func FindProfile(name, config string) (Profile, error) {
	return reader.FindProfile(name, name, catalog(config))
}

// catalog returns the folders with the profiles that a configuration file can name.
func catalog(config string) configfile.Catalog {
	var c configfile.Catalog
	if config != "" {
		c = append(c, filepath.Join(filepath.Dir(config), "profiles"))
	}
	if dir, err := os.UserConfigDir(); err == nil { // a user without a home has no such folder
		c = append(c, filepath.Join(dir, "agentenv", "profiles"))
	}
	return c
}

// Profile adapts a general agent to a task: instructions, skills, MCP servers, limits.
type Profile = runnerscripts.Profile

// LoadProfile reads a profile from a YAML or JSON file, or from a folder. A folder has the
// layout that Claude Code uses in a project: CLAUDE.md or AGENTS.md, and beside them or in its
// folder .claude the folders rules, skills, commands and agents, settings.json with permissions
// and hooks, and .mcp.json. A profile.yaml or profile.json in the folder holds the rest, such as
// the model.
//
// Errors in the files are [ErrConfig], and the message says where. LoadProfile refuses symbolic
// links that lead out of the folder, pipes, devices and files of more than 4 MiB.
func LoadProfile(name string) (Profile, error) { return reader.LoadProfile(name) }
