package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Limits for reading the folder of a profile.
const (
	maxProfileFile  = 4 << 20
	maxProfileFiles = 1000
)

// profileFolder collects a profile from files.
type profileFolder struct {
	reader  Reader
	name    string // for messages
	dir     *os.Root
	root    fs.FS // of dir
	profile runnerscripts.Profile
	read    []string // the files that were found
	files   int      // how many files were read
	errs    []error
}

// has reports whether a file or folder exists. If it cannot be examined, as behind a link that
// leads out, has records an error.
func (l *profileFolder) has(name string) bool {
	_, err := fs.Stat(l.root, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.fail(name, "%w", err)
	}
	return err == nil
}

func (l *profileFolder) fail(name, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	l.errs = append(l.errs, fmt.Errorf("%s: %w", path.Join(l.name, name), err))
}

// content reads a file. found is false if the file does not exist or cannot be read.
func (l *profileFolder) content(name string) (data []byte, found bool) {
	f, err := input.OpenIn(l.dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if l.files++; l.files == maxProfileFiles+1 {
		l.fail(name, "there are more than %d files; keep what belongs to the profile", maxProfileFiles)
	}
	if err != nil || l.files > maxProfileFiles {
		if err != nil {
			l.fail(name, "%w", err)
		}
		return nil, false
	}
	defer func() { _ = f.Close() }()
	if data, err = input.ReadAll(f, name, maxProfileFile); err != nil {
		l.fail(name, "%w", err)
		return nil, false
	}
	l.read = append(l.read, name)
	return data, true
}

// memory reads the instructions that always apply. It skips a CLAUDE.md that only imports or
// repeats the AGENTS.md beside it.
func (l *profileFolder) memory() {
	agents, _ := l.content("AGENTS.md")
	for _, name := range []string{"CLAUDE.md", ".claude/CLAUDE.md"} {
		text, found := l.content(name)
		same := bytes.Equal(text, agents) || string(bytes.TrimSpace(text)) == "@AGENTS.md"
		if found && (!same || len(agents) == 0) {
			l.rule(strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(name, ".md"), "."), "/", "-"), text)
		}
	}
	if len(agents) > 0 {
		l.rule("AGENTS", agents)
	}
}

func (l *profileFolder) rule(name string, text []byte) {
	if len(bytes.TrimSpace(text)) > 0 {
		l.profile.Rules = append(l.profile.Rules, runnerscripts.Rule{Name: name, Content: string(text)})
	}
}

// layout reads the folders and files of Claude Code in dir.
func (l *profileFolder) layout(dir string) {
	l.each(path.Join(dir, "rules"), func(name, file string) {
		if text, ok := l.content(file); ok {
			l.rule(name, text)
		}
	})
	l.each(path.Join(dir, "commands"), func(name, file string) {
		front, body := l.markdown(file)
		l.profile.Commands = append(l.profile.Commands, runnerscripts.SlashCommand{
			Name: name, Description: l.take(file, front, "description"), Content: body, Frontmatter: front,
		})
	})
	l.each(path.Join(dir, "agents"), func(name, file string) {
		front, body := l.markdown(file)
		s := runnerscripts.Subagent{
			Name: l.take(file, front, "name"), Description: l.take(file, front, "description"), Prompt: body,
			Model: l.take(file, front, "model"), Tools: l.takeList(file, front, "tools"), Frontmatter: front,
		}
		if s.Name == "" {
			s.Name = name
		}
		l.profile.Subagents = append(l.profile.Subagents, s)
	})
	l.skills(path.Join(dir, "skills"))
	l.settings(path.Join(dir, "settings.json"))
	l.servers(path.Join(dir, ".mcp.json"))
}

// each calls do for each Markdown file in a folder and its subfolders. The name joins the
// folders and the file's name with "-".
func (l *profileFolder) each(dir string, do func(name, file string)) {
	if !l.has(dir) {
		return
	}
	err := fs.WalkDir(l.root, dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			// WalkDir does not follow a link to a folder.
			if info, err := fs.Stat(l.root, file); err != nil || info.IsDir() {
				l.fail(file, "put the files themselves in the place of this link")
				return nil
			}
		}
		if path.Ext(file) != ".md" {
			return nil
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, dir+"/"), ".md")
		do(strings.ReplaceAll(name, "/", "-"), file)
		return nil
	})
	if err != nil {
		l.fail(dir, "%w", err)
	}
}

// markdown reads a file with frontmatter.
func (l *profileFolder) markdown(file string) (front map[string]any, body string) {
	data, _ := l.content(file)
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	rest, ok := strings.CutPrefix(text, "---\n")
	if !ok {
		return nil, text
	}
	head, body, ok := strings.Cut("\n"+rest, "\n---\n")
	if !ok {
		if head, ok = strings.CutSuffix("\n"+rest, "\n---"); !ok {
			l.fail(file, "end its frontmatter with a line ---")
			return nil, ""
		}
	}
	asJSON, err := yaml.YAMLToJSONStrict([]byte(head))
	if err == nil {
		err = json.Unmarshal(asJSON, &front)
	}
	if err != nil {
		l.fail(file, "correct its frontmatter: %w", err)
	}
	return front, strings.TrimPrefix(body, "\n")
}

// take removes a text from the frontmatter and returns it.
func (l *profileFolder) take(file string, front map[string]any, key string) string {
	v, ok := front[key]
	delete(front, key)
	text, isText := v.(string)
	if ok && v != nil && !isText {
		l.fail(file, "give %s in its frontmatter as a text, not %s", key, given(v))
	}
	return text
}

// takeList removes a list from the frontmatter and returns it. The list may be a text with
// commas.
func (l *profileFolder) takeList(file string, front map[string]any, key string) []string {
	if _, ok := front[key].([]any); !ok {
		return splitList(l.take(file, front, key))
	}
	var list []string
	for _, v := range front[key].([]any) {
		text, ok := v.(string)
		if !ok {
			l.fail(file, "give %s in its frontmatter as texts, not %s", key, given(v))
		}
		list = append(list, text)
	}
	delete(front, key)
	return list
}

func splitList(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// skills reads the subfolders that have a SKILL.md, with all their files.
func (l *profileFolder) skills(dir string) {
	if !l.has(dir) {
		return
	}
	entries, err := fs.ReadDir(l.root, dir)
	if err != nil {
		l.fail(dir, "%w", err)
	}
	for _, e := range entries {
		folder := path.Join(dir, e.Name())
		main := path.Join(folder, "SKILL.md")
		switch info, err := fs.Stat(l.root, folder); {
		case err != nil:
			l.fail(folder, "%w", err)
			continue
		case !info.IsDir():
			continue
		case !l.has(main):
			l.fail(folder, "it has no SKILL.md; write one, or move the folder elsewhere")
			continue
		}
		front, body := l.markdown(main)
		s := runnerscripts.Skill{
			Name: l.take(main, front, "name"), Description: l.take(main, front, "description"), Content: body, Frontmatter: front,
			Files: l.tree(folder, "SKILL.md"),
		}
		if s.Name == "" {
			s.Name = e.Name()
		}
		l.profile.Skills = append(l.profile.Skills, s)
	}
}

// tree reads all files of a folder except one.
func (l *profileFolder) tree(dir, but string) []runnerscripts.WorkspaceFile {
	var files []runnerscripts.WorkspaceFile
	err := fs.WalkDir(l.root, dir, func(name string, d fs.DirEntry, err error) error {
		below := strings.TrimPrefix(name, dir+"/")
		if err != nil || d.IsDir() || below == but {
			return err
		}
		info, err := fs.Stat(l.root, name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: %w; remove it", name, primitives.ErrNotRegular)
		}
		if data, ok := l.content(name); ok {
			files = append(files, runnerscripts.WorkspaceFile{Path: below, Content: data, Mode: info.Mode().Perm()})
		}
		return nil
	})
	if err != nil {
		l.fail(dir, "%w", err)
	}
	return files
}

// sortedKeys returns the keys of a map, sorted.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
