// Package acpregistry has the agents of the registry of the Agent Client Protocol
// (https://github.com/agentclientprotocol/registry, Apache-2.0), as agents.json says. Its program
// update writes that file from a checkout of the registry.
package acpregistry

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

//go:generate go run ./update $ACP_REGISTRY agents.json

// Catalog is a copy of the registry.
type Catalog struct {
	// Commit is the commit of the registry that the catalog was written from, and Date its day.
	Commit string  `json:"commit"`
	Date   string  `json:"date"`
	Agents []Agent `json:"agents"` // sorted by ID
}

// Agent says how to get and to start an agent.
type Agent struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	// Program is the command, as it is found in PATH, and Args what makes it speak the protocol.
	Program string            `json:"program"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// NPM and UVX are its packages of npm and PyPI, with their versions; empty for none.
	NPM string `json:"npm,omitempty"`
	UVX string `json:"uvx,omitempty"`
	// Archives are the addresses of archives with the program, by platform, as in "linux-x86_64".
	Archives map[string]string `json:"archives,omitempty"`
}

//go:embed agents.json
var data []byte

var catalog = sync.OnceValue(func() Catalog {
	c, err := Parse(data)
	if err != nil {
		panic("agents.json: " + err.Error()) // cannot happen: a test parses the file
	}
	return c
})

// Names returns the names of all agents, such as "acp:goose", sorted.
func Names() []string {
	var names []string
	for _, a := range catalog().Agents {
		names = append(names, a.Name())
	}
	return names
}

// Find returns the agent with a name such as "acp:goose". ok is false if there is none.
func Find(name string) (a Agent, ok bool) {
	id, ok := strings.CutPrefix(name, runnerscripts.RegistryPrefix)
	if !ok {
		return Agent{}, false
	}
	i, ok := slices.BinarySearchFunc(catalog().Agents, id, func(a Agent, id string) int { return strings.Compare(a.ID, id) })
	if !ok {
		return Agent{}, false
	}
	return catalog().Agents[i], true
}

// Parse decodes a catalog and checks its agents. Unknown fields are an error.
func Parse(data []byte) (Catalog, error) {
	var c Catalog
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, err
	}
	if !slices.IsSortedFunc(c.Agents, func(a, b Agent) int { return strings.Compare(a.ID, b.ID) }) {
		return c, fmt.Errorf("the agents are not sorted by id")
	}
	for i, a := range c.Agents {
		if i > 0 && a.ID == c.Agents[i-1].ID {
			return c, fmt.Errorf("the agent %q is there twice", a.ID)
		}
		if err := a.Check(); err != nil {
			return c, fmt.Errorf("the agent %q: %w", a.ID, err)
		}
	}
	return c, nil
}

var (
	idPattern       = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	versionPattern  = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`)
	programPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	npmPattern      = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9][0-9A-Za-z.+-]*$`)
	uvxPattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(==|@)[0-9][0-9A-Za-z.+!-]*$`)
	variablePattern = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	platformPattern = regexp.MustCompile(`^(darwin|linux)-(aarch64|x86_64)$`)
	archivePattern  = regexp.MustCompile(`^https://[A-Za-z0-9][A-Za-z0-9./_+~%-]*$`)
)

// Check returns an error for an agent whose fields, apart from Args and the values of Env, have
// characters that a shell or npm could take for something else, and for one that nothing provides.
func (a Agent) Check() error {
	for _, field := range []struct {
		name, value string
		pattern     *regexp.Regexp
		required    bool
	}{
		{"id", a.ID, idPattern, true},
		{"version", a.Version, versionPattern, true},
		{"program", a.Program, programPattern, true},
		{"npm", a.NPM, npmPattern, false},
		{"uvx", a.UVX, uvxPattern, false},
	} {
		if (field.required || field.value != "") && !field.pattern.MatchString(field.value) {
			return fmt.Errorf("%s: %q has another form than %s", field.name, field.value, field.pattern)
		}
	}
	for key := range a.Env {
		if !variablePattern.MatchString(key) {
			return fmt.Errorf("env: %q has another form than %s", key, variablePattern)
		}
	}
	for _, text := range slices.Concat(a.Args, slices.Collect(maps.Values(a.Env))) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("%q can be neither an argument nor the value of a variable", text)
		}
	}
	for platform, address := range a.Archives {
		if !platformPattern.MatchString(platform) || !archivePattern.MatchString(address) {
			return fmt.Errorf("archives: %q of %q has another form than %s of %s", address, platform, archivePattern, platformPattern)
		}
	}
	if a.NPM == "" && a.UVX == "" && len(a.Archives) == 0 {
		return fmt.Errorf("there is no way to get it")
	}
	return nil
}

// Name returns the agent's name in a configuration.
func (a Agent) Name() string { return runnerscripts.RegistryPrefix + a.ID }

// debian are the packages of a Debian system that agents use, as those of the runner do.
var debian = []string{"ca-certificates", "git"}

// Complete returns the recipe of an agent of the protocol, completed with what this one needs.
func (a Agent) Complete(r runnerscripts.Recipe) runnerscripts.Recipe {
	r.Agent, r.Program, r.Version = a.Name(), a.Program, a.Version
	if a.NPM != "" {
		r.Debian, r.NPM = slices.Clone(debian), []string{a.NPM}
	}
	return r
}

// Launch returns how the agent is started in a sandbox of a platform, in the words of package
// runtime.
func (a Agent) Launch(goos, goarch string) *runnerscripts.Launch {
	return &runnerscripts.Launch{
		Program: a.Program, Args: slices.Clone(a.Args), Env: maps.Clone(a.Env), UVX: a.UVX, Advice: a.Advice(goos, goarch),
	}
}

// Advice says how a sandbox of a platform gets the agent.
func (a Agent) Advice(goos, goarch string) string {
	install := fmt.Sprintf("install the program %q of the agent %s %s in the sandbox", a.Program, a.Name(), a.Version)
	platform := platformOf(goos, goarch)
	switch archive := a.Archives[platform]; {
	case a.NPM != "":
		return fmt.Sprintf("%s, with 'npm install --global %s'", install, a.NPM)
	case a.UVX != "":
		return fmt.Sprintf("%s, or uv, which runs it as 'uvx %s'", install, a.UVX)
	case archive != "":
		return fmt.Sprintf("%s, from %s", install, archive)
	}
	return fmt.Sprintf("%s; the ACP registry has none for %s, only for %s", install, platform,
		strings.Join(slices.Sorted(maps.Keys(a.Archives)), ", "))
}

// platformOf returns a platform in the words of the registry.
func platformOf(goos, goarch string) string {
	if words := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[goarch]; words != "" {
		goarch = words
	}
	return goos + "-" + goarch
}
