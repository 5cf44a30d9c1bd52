package configfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Catalog is a list of folders with profiles. Each profile is a file or folder with the
// profile's name. A profile in an earlier folder hides one of the same name in a later folder.
type Catalog []string

// Entry is a profile of a catalog.
type Entry struct {
	Name string
	// Path is the profile's file or folder.
	Path string
}

// extensions are the extensions of profile files.
var extensions = []string{".yaml", ".yml", ".json"}

// Entries returns the profiles of agents, sorted by name. A folder that does not exist has none.
func (c Catalog) Entries() ([]Entry, error) { return c.entries(false) }

// Executors returns the profiles of executors, as Entries does.
func (c Catalog) Executors() ([]Entry, error) { return c.entries(true) }

func (c Catalog) entries(executors bool) ([]Entry, error) {
	var list []Entry
	for _, dir := range c {
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the profiles: %w", err)
		}
		var found []Entry
		var owned []string // the folders of executors
		for _, f := range files {
			name, ok := profileName(dir, f)
			if !ok {
				continue
			}
			parts, is := executorParts(filepath.Join(dir, f.Name()))
			owned = append(owned, parts...)
			if is == executors {
				found = append(found, Entry{Name: name, Path: filepath.Join(dir, f.Name())})
			}
		}
		for _, e := range found {
			hidden := slices.ContainsFunc(list, func(other Entry) bool { return other.Name == e.Name })
			if !hidden && !slices.Contains(owned, filepath.Base(e.Path)) {
				list = append(list, e)
			}
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// profileName returns the name of the profile in a file or folder, following links.
func profileName(dir string, f fs.DirEntry) (string, bool) {
	info, err := os.Stat(filepath.Join(dir, f.Name()))
	if err != nil || strings.HasPrefix(f.Name(), ".") {
		return "", false
	}
	name, ext := f.Name(), filepath.Ext(f.Name())
	if info.IsDir() {
		return name, IsProfileName(name)
	}
	name = strings.TrimSuffix(name, ext)
	return name, slices.Contains(extensions, ext) && IsProfileName(name)
}

// IsProfileName reports whether s is the name of a profile, and not a path.
func IsProfileName(s string) bool {
	return s != "" && s[0] != '.' && s[0] != '~' && !strings.ContainsAny(s, `/\`) && !slices.Contains(extensions, filepath.Ext(s))
}

// executorParts reports whether a file describes an executor and not a profile of an agent. It returns
// the first elements of the paths of the executor's files.
func executorParts(name string) (parts []string, ok bool) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	data, err := input.ReadFile(name, MaxSize)
	if err != nil {
		return nil, false
	}
	return describesExecutor(data)
}

// describesExecutor is executorParts for the content of a file: an executor has a type or a command.
func describesExecutor(data []byte) (parts []string, ok bool) {
	asJSON, err := ToJSON("", data)
	if err != nil {
		return nil, false
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(asJSON, &keys) != nil || keys["type"] == nil && keys["command"] == nil {
		return nil, false
	}
	_ = json.Unmarshal(keys["files"], &parts) // reading the executor reports what is wrong
	for i, p := range parts {
		parts[i], _, _ = strings.Cut(path.Clean(p), "/")
	}
	return parts, true
}

// FindProfile reads a profile by its name in the catalog or else by its path, as
// [Reader.LoadProfile] does. A name is never a path: a repository could have a file of that name,
// and a profile can run commands.
func (r Reader) FindProfile(path, name string, c Catalog) (runnerscripts.Profile, error) {
	if !IsProfileName(name) {
		return r.LoadProfile(path)
	}
	list, err := c.Entries()
	if err != nil {
		return runnerscripts.Profile{}, err
	}
	var names []string
	for _, e := range list {
		if e.Name == name {
			return r.LoadProfile(e.Path)
		}
		names = append(names, e.Name)
	}
	if executors, err := c.Executors(); err == nil && slices.ContainsFunc(executors, func(e Entry) bool { return e.Name == name }) {
		return runnerscripts.Profile{}, fmt.Errorf("%w: profile %q: it describes an executor; use it as an agent: executor:%[2]s", ErrInvalid, name)
	}
	known := "there are none in " + strings.Join(c, " and ")
	if len(names) > 0 {
		known = "choose one of " + strings.Join(names, ", ")
	}
	return runnerscripts.Profile{}, fmt.Errorf("%w: profile %q: %w; %s, or give the path of one, such as ./%[2]s", ErrInvalid, name, fs.ErrNotExist, known)
}
