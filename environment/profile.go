package environment

import (
	"errors"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Profile makes a general agent a particular one: instructions, skills, servers
// of tools, limits.
type Profile = runnerscripts.Profile

// LoadProfile reads a profile from a YAML or JSON file, or from a folder. A folder
// has the layout that Claude Code has in a project: CLAUDE.md or AGENTS.md, and
// beside them or in its folder .claude the folders rules, skills, commands and
// agents, settings.json with permissions and hooks, and .mcp.json. A profile.yaml
// or profile.json in the folder says the rest, such as the model.
//
// What is wrong in the files is [ErrConfig], and the message says where. Symbolic
// links that lead out of the folder are refused, and so are pipes, devices and files
// of more than 4 MiB.
func LoadProfile(name string) (Profile, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	var p Profile
	if info.IsDir() {
		p, err = loadProfileFolder(name)
	} else {
		p, err = loadProfileFile(name)
	}
	if err != nil {
		return Profile{}, err
	}
	if err := p.Check(); err != nil {
		return Profile{}, fmt.Errorf("%s: %w: %w", name, ErrConfig, err)
	}
	return p, nil
}

func loadProfileFile(name string) (Profile, error) {
	data, err := input.ReadFile(name, maxConfig)
	if err != nil {
		return Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	p, err := parseProfile(data)
	if err != nil {
		return Profile{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func parseProfile(data []byte) (p Profile, err error) {
	asJSON, err := configJSON(data)
	if err != nil {
		return p, err
	}
	return p, decodeStrict(asJSON, &p, "")
}

// loadProfileFolder reads the files that there are; one that is a mistake is the
// error.
func loadProfileFolder(dir string) (Profile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	defer func() { _ = root.Close() }()
	l := &profileFolder{name: dir, dir: root, root: root.FS()}
	for _, name := range []string{"profile.yaml", "profile.yml", "profile.json"} {
		if !l.has(name) {
			continue
		}
		data, _ := l.content(name)
		if l.profile, err = parseProfile(data); err != nil {
			l.fail(name, "%w", err)
		}
	}
	if len(l.errs) == 0 && len(l.read) > 1 {
		return Profile{}, fmt.Errorf("%w: %s has both %s and %s; keep one of them", ErrConfig, dir, l.read[0], l.read[1])
	}
	l.memory()
	for _, below := range []string{".", ".claude"} {
		l.layout(below)
	}
	if len(l.errs) > 0 {
		return Profile{}, errors.Join(l.errs...)
	}
	if len(l.read) == 0 {
		return Profile{}, fmt.Errorf("%w: %s has nothing of a profile; put a profile.yaml, a CLAUDE.md, an AGENTS.md or a folder skills into it", ErrConfig, dir)
	}
	return l.profile, nil
}
