package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// ownFolder holds the drivers' own files, below the session's home.
const ownFolder = ".config/agentenv"

// WriteProfile writes the files of a profile, by paths relative to the session's home, and
// removes the files of the agent's previous profile. It touches nothing outside the home.
func WriteProfile(s runnerscripts.Session, files []runnerscripts.WorkspaceFile) error {
	if err := checkApart(files); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.Paths.Home)
	if err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	defer func() { _ = root.Close() }()
	list := path.Join(ownFolder, s.Agent.Name+".files.json")
	var before []string
	data, err := root.ReadFile(list)
	if err == nil {
		err = json.Unmarshal(data, &before)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what the last profile wrote: %w", err)
	}
	written := make([]string, len(files))
	for i, f := range files {
		written[i] = f.Path
	}
	for _, name := range before {
		if slices.Contains(written, name) || !fs.ValidPath(name) {
			continue
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what the last profile wrote: %w", err)
		}
	}
	if data, err = json.Marshal(written); err != nil {
		return err
	}
	// Write the list first: naming a missing file does no harm.
	for _, f := range slices.Concat([]runnerscripts.WorkspaceFile{{Path: list, Content: data, Mode: 0o600}}, files) {
		if err := writeBelow(root, f); err != nil {
			return fmt.Errorf("write %s of the profile: %w", f.Path, err)
		}
	}
	return nil
}

// checkApart refuses files that would overwrite each other.
func checkApart(files []runnerscripts.WorkspaceFile) error {
	twice := func(name string) error {
		return Invalid("rename a part of the profile: two would be written as %q of the home", name)
	}
	taken := make(map[string]bool, len(files))
	for _, f := range files {
		if taken[f.Path] {
			return twice(f.Path)
		}
		taken[f.Path] = true
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if taken[dir] {
				return twice(dir)
			}
		}
	}
	return nil
}

// writeBelow writes a file below root. It replaces a file of any type.
func writeBelow(root *os.Root, f runnerscripts.WorkspaceFile) error {
	mode := f.Mode.Perm()
	if mode == 0 {
		mode = 0o644
	}
	if err := root.MkdirAll(path.Dir(f.Path), 0o700); err != nil {
		return err
	}
	if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.WriteFile(f.Path, f.Data(), mode); err != nil {
		return err
	}
	return root.Chmod(f.Path, mode) // independent of the umask
}

// SkillFiles returns the files of skills in the Agent Skills format, each skill in a folder below
// dir.
func SkillFiles(dir string, skills []runnerscripts.Skill) []runnerscripts.WorkspaceFile {
	var files []runnerscripts.WorkspaceFile
	for _, s := range skills {
		front := maps.Clone(s.Frontmatter)
		if front == nil {
			front = map[string]any{}
		}
		front["name"], front["description"] = s.Name, s.Description
		files = append(files, Markdown(path.Join(dir, s.Name, "SKILL.md"), front, s.Content))
		files = append(files, Below(path.Join(dir, s.Name), s.Files)...)
	}
	return files
}

// Below returns files with their paths below a folder.
func Below(dir string, files []runnerscripts.WorkspaceFile) []runnerscripts.WorkspaceFile {
	moved := slices.Clone(files)
	for i := range moved {
		moved[i].Path = path.Join(dir, moved[i].Path)
	}
	return moved
}

// Markdown returns a Markdown file with YAML frontmatter. It writes values as JSON, which is YAML
// too, and leaves out empty values.
func Markdown(name string, front map[string]any, body string) runnerscripts.WorkspaceFile {
	var b strings.Builder
	b.WriteString("---\n")
	for _, key := range slices.Sorted(maps.Keys(front)) {
		if front[key] == nil || front[key] == "" {
			continue
		}
		var value strings.Builder
		enc := json.NewEncoder(&value)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(front[key]); err == nil { // never fails: it was decoded from JSON
			fmt.Fprintf(&b, "%s: %s", key, value.String())
		}
	}
	b.WriteString("---\n\n")
	b.WriteString(strings.TrimSuffix(body, "\n"))
	b.WriteString("\n")
	return runnerscripts.WorkspaceFile{Path: name, Text: b.String()}
}

// Rules joins the rules of a profile into one text, for agents that read a single file.
func Rules(rules []runnerscripts.Rule) string {
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = strings.TrimSpace(r.Content)
	}
	return strings.Join(texts, "\n\n")
}
