package environment

import (
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
)

// ProfileInfo is a profile that can be used by its name.
type ProfileInfo struct {
	Name string `json:"name"`
	// Path is the file or folder that has it.
	Path        string `json:"path"`
	Description string `json:"description,omitempty"`
	// Problem is why it cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// Profiles lists the profiles that a configuration can name, in the order of their names:
// those in the folder profiles beside the configuration file, then those in the folder
// agentenv/profiles of the user's configuration (os.UserConfigDir). Of two with the same
// name the first counts. Without a configuration file, config is empty.
//
// A profile is a file, such as reviewer.yaml, or a folder, as [LoadProfile] takes both.
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

// FindProfile reads the profile of a path, as [LoadProfile] does, or of a name in [Profiles]. A
// file or folder of that name in the working directory counts first. The error of a name that
// is not known is [ErrConfig] and lists those that are.
func FindProfile(name, config string) (Profile, error) {
	return reader.FindProfile(name, name, catalog(config))
}

// catalog is where the profiles are that a configuration file can name.
func catalog(config string) configfile.Catalog {
	var c configfile.Catalog
	if config != "" {
		c = append(c, filepath.Join(filepath.Dir(config), "profiles"))
	}
	if dir, err := os.UserConfigDir(); err == nil { // a user without a home has none
		c = append(c, filepath.Join(dir, "agentenv", "profiles"))
	}
	return c
}
