package configfile

import (
	"errors"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// LoadProfile reads a profile from a YAML or JSON file or from a folder.
func (r Reader) LoadProfile(name string) (runnerscripts.Profile, error) {
	info, err := os.Stat(name)
	if err != nil {
		return runnerscripts.Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	var p runnerscripts.Profile
	if info.IsDir() {
		p, err = r.loadProfileFolder(name)
	} else {
		p, err = r.loadProfileFile(name)
	}
	if err != nil {
		return runnerscripts.Profile{}, err
	}
	if err := p.Check(); err != nil {
		return runnerscripts.Profile{}, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
	}
	return p, nil
}

func (r Reader) loadProfileFile(name string) (runnerscripts.Profile, error) {
	data, err := input.ReadFile(name, MaxSize)
	if err != nil {
		return runnerscripts.Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	if _, is := describesExecutor(data); is {
		return runnerscripts.Profile{}, fmt.Errorf("%s: %w: it describes an executor; use it as an agent: executor:NAME", name, ErrInvalid)
	}
	p, err := r.parseProfile(name, data)
	if err != nil {
		return runnerscripts.Profile{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (r Reader) parseProfile(name string, data []byte) (p runnerscripts.Profile, err error) {
	asJSON, err := ToJSON(name, data)
	if err != nil {
		return p, err
	}
	return p, r.Decode(asJSON, &p, "")
}

// loadProfileFolder reads the files of a profile that exist. An invalid file is an error.
func (r Reader) loadProfileFolder(dir string) (runnerscripts.Profile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return runnerscripts.Profile{}, fmt.Errorf("read the profile: %w", err)
	}
	defer func() { _ = root.Close() }()
	l := &profileFolder{reader: r, name: dir, dir: root, root: root.FS()}
	for _, name := range []string{"profile.yaml", "profile.yml", "profile.json"} {
		if !l.has(name) {
			continue
		}
		data, _ := l.content(name)
		if l.profile, err = r.parseProfile(name, data); err != nil {
			l.fail(name, "%w", err)
		}
	}
	if len(l.errs) == 0 && len(l.read) > 1 {
		return runnerscripts.Profile{}, fmt.Errorf("%w: %s has both %s and %s; keep one of them", ErrInvalid, dir, l.read[0], l.read[1])
	}
	l.memory()
	for _, below := range []string{".", ".claude"} {
		l.layout(below)
	}
	if len(l.errs) > 0 {
		return runnerscripts.Profile{}, errors.Join(l.errs...)
	}
	if len(l.read) == 0 {
		return runnerscripts.Profile{}, fmt.Errorf("%w: %s has nothing of a profile; put a profile.yaml, a CLAUDE.md, an AGENTS.md or a folder skills into it", ErrInvalid, dir)
	}
	return l.profile, nil
}
