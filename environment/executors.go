package environment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// ExecutorPrefix begins the name of an agent that is an executor profile, as in "executor:echo".
const ExecutorPrefix = "executor:"

// commandAgent is the agent that is a program of the user, an executor.
const commandAgent = "command"

// acpAgent is any agent of the Agent Client Protocol: nothing else is known about it.
const acpAgent = "acp"

// maxExecutorFiles limits the files of an executor together: requests to the runner carry them.
const maxExecutorFiles = 1 << 20

// ExecutorInfo describes an executor profile that a configuration can name.
type ExecutorInfo struct {
	Name      string             `json:"name"`
	Path      string             `json:"path"` // of the profile's file
	Type      string             `json:"type,omitempty"`
	Lifecycle executor.Lifecycle `json:"lifecycle,omitempty"`
	// AgentsDir is the absolute path of agents_dir; empty for none.
	AgentsDir string `json:"agents_dir,omitempty"`
	// Problem is why the profile cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// executorFile is the content of a profile's file.
type executorFile struct {
	Type             string             `json:"type"`
	Command          executor.Command   `json:"command"`
	Config           json.RawMessage    `json:"config"`
	AgentsDir        string             `json:"agents_dir"`
	Lifecycle        executor.Lifecycle `json:"lifecycle"`
	Files            []string           `json:"files"`
	ParametersSchema json.RawMessage    `json:"parameters_schema"`
	OutputSchema     json.RawMessage    `json:"output_schema"`
	TimeoutSeconds   int                `json:"timeout_seconds"`
	RPC              bool               `json:"rpc"`
}

// Executors lists the executor profiles that a configuration can name, sorted by name, from the
// folders of [Profiles]: files such as echo.json with a type and a command. config is the
// configuration file; empty for none.
func Executors(config string) ([]ExecutorInfo, error) {
	entries, err := catalog(config).Executors()
	if err != nil {
		return nil, err
	}
	var list []ExecutorInfo
	for _, e := range entries {
		info := ExecutorInfo{Name: e.Name, Path: e.Path}
		f, p, err := loadExecutor(e.Path)
		if err != nil {
			info.Problem = err.Error()
		}
		info.Type, info.Lifecycle = f.Type, p.Lifecycle
		if f.AgentsDir != "" {
			info.AgentsDir = filepath.Join(filepath.Dir(e.Path), f.AgentsDir)
		}
		list = append(list, info)
	}
	return list, nil
}

// FindExecutor returns the agent of an executor profile, for [Config]: the agent "command" with the
// profile as its Config, so that it needs no file any more. name is a name in [Executors], or the
// path of a file, which has a slash or an extension. For an unknown name the error is [ErrConfig]
// and lists the known names; other errors of a profile are [ErrConfig] and name file and field.
func FindExecutor(name, config string) (Agent, error) { return findExecutor(name, name, config) }

// findExecutor is FindExecutor with the path that the name has if it is one.
func findExecutor(where, name, config string) (Agent, error) {
	if name == "" {
		return Agent{}, fmt.Errorf("%w: agent: %s has no name; give one, such as %[2]secho, or the path of a profile", ErrConfig, ExecutorPrefix)
	}
	if configfile.IsProfileName(name) {
		list, err := Executors(config)
		if err != nil {
			return Agent{}, err
		}
		var names []string
		where = ""
		for _, e := range list {
			names = append(names, e.Name)
			if e.Name == name {
				where = e.Path
			}
		}
		if where == "" {
			return Agent{}, unknownExecutor(name, config, names)
		}
	}
	_, p, err := loadExecutor(where)
	if err != nil {
		return Agent{}, err
	}
	data, err := json.Marshal(p)
	return Agent{Name: commandAgent, Config: data}, err
}

func unknownExecutor(name, config string, names []string) error {
	advice := "there are none in " + strings.Join(catalog(config), " and ")
	if len(names) > 0 {
		advice = "choose one of " + strings.Join(names, ", ")
	}
	if meant := closest.Name(name, names); meant != "" {
		advice = "did you mean " + meant + "? " + advice
	}
	if config == "" {
		advice += "; give the configuration file, as with --config, for those in the folder profiles beside it"
	}
	return fmt.Errorf("%w: executor %q: %w; %s, or give the path of a profile, such as executor:./%[2]s.json", ErrConfig, name, fs.ErrNotExist, advice)
}

// loadExecutor reads the file of an executor profile and the files that it names.
func loadExecutor(name string) (f executorFile, p executor.Profile, err error) {
	data, err := input.ReadFile(name, configfile.MaxSize)
	if err != nil {
		return f, p, fmt.Errorf("read the executor profile: %w", err)
	}
	if data, err = configfile.ToJSON(name, data); err == nil {
		err = reader.Decode(data, &f, "")
	}
	if err == nil && strings.TrimSpace(f.Type) == "" {
		err = fmt.Errorf("%w: type: it is missing; give the kind of the executor, such as autonomous, or %s", ErrConfig, executor.Procedural)
	}
	if err != nil {
		return f, p, fmt.Errorf("%s: %w", name, err)
	}
	p = executor.Profile{
		Type: f.Type, Command: f.Command, Config: f.Config, Lifecycle: f.Lifecycle,
		ParametersSchema: f.ParametersSchema, OutputSchema: f.OutputSchema, TimeoutSeconds: f.TimeoutSeconds, RPC: f.RPC,
	}
	if p.Files, err = executorFiles(filepath.Dir(name), f.Files); err == nil {
		err = p.Check()
	}
	for field, text := range map[string]json.RawMessage{"parameters_schema": p.ParametersSchema, "output_schema": p.OutputSchema} {
		if err == nil && len(text) > 0 {
			if _, err = schema.Parse(text); err != nil {
				err = fmt.Errorf("%s: %w", field, err)
			}
		}
	}
	if err != nil {
		return f, p, fmt.Errorf("%s: %w: %w", name, ErrConfig, err)
	}
	return f, p, nil
}

// executorFiles reads the files of an executor, and those in its folders, below dir.
func executorFiles(dir string, names []string) ([]runnerscripts.WorkspaceFile, error) {
	if len(names) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var files []runnerscripts.WorkspaceFile
	left := int64(maxExecutorFiles)
	for i, name := range names {
		name = path.Clean(name)
		err := fs.WalkDir(root.FS(), name, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			file, err := readExecutorFile(root, name, left)
			left -= int64(len(file.Content))
			files = append(files, file)
			return err
		})
		if errors.Is(err, primitives.ErrLimit) {
			err = fmt.Errorf("%w; the files of an executor may have %d bytes together: put the rest into the image", err, maxExecutorFiles)
		}
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = fmt.Errorf("%s in %s: %w", at.Path, dir, at.Err)
		}
		if err != nil {
			return nil, fmt.Errorf("files[%d]: %w", i, err)
		}
	}
	return files, nil
}

func readExecutorFile(root *os.Root, name string, limit int64) (file runnerscripts.WorkspaceFile, err error) {
	f, err := input.OpenIn(root, name)
	if err != nil {
		return file, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return file, err
	}
	file = runnerscripts.WorkspaceFile{Path: name, Mode: info.Mode().Perm()}
	file.Content, err = io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(file.Content)) > limit {
		err = fmt.Errorf("%s: %w", name, primitives.ErrLimit)
	}
	return file, err
}

// resolveExecutor replaces the name of an executor profile in a configuration by its agent. dir is
// the folder of relative paths.
func (c *Config) resolveExecutor(file, dir string) error {
	name, ok := strings.CutPrefix(c.Agent.Name, ExecutorPrefix)
	if !ok {
		return nil
	}
	if len(c.Agent.Command) > 0 || len(c.Agent.Config) > 0 {
		return fmt.Errorf("%w: agent: %s has its command and its config in the profile; leave both out", ErrConfig, c.Agent.Name)
	}
	where := name
	if !filepath.IsAbs(where) {
		where = filepath.Join(dir, where)
	}
	found, err := findExecutor(where, name, file)
	if err != nil {
		return err
	}
	c.Agent.Name, c.Agent.Config = found.Name, found.Config
	return nil
}
