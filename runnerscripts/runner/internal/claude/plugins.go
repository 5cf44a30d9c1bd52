package claude

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// pluginTime limits the fetch of a marketplace or a plugin.
const pluginTime = 10 * time.Minute

// installedFile notes which plugins were installed from marketplaces, below the
// session's home.
const installedFile = ownDir + "/plugins.json"

// installed lists what the runner has installed with the program.
type installed struct {
	// Marketplaces maps the source of a marketplace to its name.
	Marketplaces map[string]string `json:"marketplaces"`
	Plugins      []string          `json:"plugins"` // each as plugin@marketplace
}

// plugins installs the marketplace plugins of a profile.
type plugins struct {
	session runnerscripts.Session
	argv    []string // the program
	env     []string
	state   installed
}

// installPlugins installs the marketplace plugins of a profile, and removes those of the
// previous profile.
func installPlugins(ctx context.Context, s runnerscripts.Session, p runnerscripts.Profile) error {
	i := plugins{session: s, env: environment(s)}
	if err := i.load(); err != nil {
		return err
	}
	wanted := slices.ContainsFunc(p.Plugins, func(p runnerscripts.Plugin) bool { return p.Marketplace != "" })
	if !wanted && len(i.state.Plugins) == 0 {
		return nil
	}
	argv, err := program(s.Agent, i.env)
	if err != nil {
		return err
	}
	i.argv = argv
	var keep []string
	for n, plugin := range p.Plugins {
		if plugin.Marketplace == "" {
			continue
		}
		id, err := i.install(ctx, plugin)
		if err != nil {
			return agent.Invalid("correct profile.plugins[%d], or what it needs in the sandbox: %v", n, err)
		}
		keep = append(keep, id)
	}
	for _, id := range slices.Clone(i.state.Plugins) {
		if slices.Contains(keep, id) {
			continue
		}
		if _, err := i.run(ctx, "uninstall", "--", id); err != nil {
			return fmt.Errorf("remove the plugin %s of the last profile: %w", id, err)
		}
		i.state.Plugins = slices.DeleteFunc(i.state.Plugins, func(other string) bool { return other == id })
		if err := i.store(); err != nil {
			return err
		}
	}
	return nil
}

// install installs a plugin if necessary, and returns its ID.
func (i *plugins) install(ctx context.Context, p runnerscripts.Plugin) (string, error) {
	source := p.Marketplace
	if strings.HasPrefix(source, ".") {
		source = filepath.Join(i.session.Paths.Workspace, source)
	}
	market, ok := i.state.Marketplaces[source]
	if !ok {
		var err error
		if market, err = i.addMarketplace(ctx, source); err != nil {
			return "", err
		}
		i.state.Marketplaces[source] = market
		if err := i.store(); err != nil {
			return "", err
		}
	}
	id := p.Name + "@" + market
	if !slices.Contains(i.state.Plugins, id) {
		if _, err := i.run(ctx, "install", "--", id); err != nil {
			return "", err
		}
		i.state.Plugins = append(i.state.Plugins, id)
	}
	return id, i.store()
}

// addMarketplace adds a marketplace to the program, and returns its name.
func (i *plugins) addMarketplace(ctx context.Context, source string) (string, error) {
	before, err := i.marketplaces(ctx)
	if err != nil {
		return "", err
	}
	if _, err := i.run(ctx, "marketplace", "add", "--", source); err != nil {
		return "", err
	}
	after, err := i.marketplaces(ctx)
	if err != nil {
		return "", err
	}
	for name, where := range after {
		if _, known := before[name]; !known || slices.Contains(where, source) {
			return name, nil
		}
	}
	return "", fmt.Errorf("the program does not tell the name of the marketplace %s", source)
}

// marketplaces returns the program's marketplaces: a description of each, by name.
func (i *plugins) marketplaces(ctx context.Context) (map[string][]string, error) {
	out, err := i.run(ctx, "marketplace", "list", "--json")
	if err != nil {
		return nil, err
	}
	var list []map[string]any
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read the list of marketplaces: %w", err)
	}
	found := map[string][]string{}
	for _, m := range list {
		name, _ := m["name"].(string)
		for _, v := range m {
			if text, ok := v.(string); ok {
				found[name] = append(found[name], text)
			}
		}
	}
	return found, nil
}

// run runs "claude plugin" outside the workspace, so that it does not read the workspace's
// settings.
func (i *plugins) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTime)
	defer cancel()
	argv := slices.Concat(i.argv, []string{"plugin"}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = i.session.Paths.Home, i.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	said := string(out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		said += string(exit.Stderr)
	}
	const most = 2 << 10
	said = strings.TrimSpace(said)
	return nil, fmt.Errorf("claude plugin %s: %w: %s", strings.Join(args, " "), err, said[max(0, len(said)-most):])
}

func (i *plugins) file() string {
	return filepath.Join(i.session.Paths.Home, filepath.FromSlash(installedFile))
}

func (i *plugins) load() error {
	data, err := os.ReadFile(i.file())
	if err == nil {
		err = json.Unmarshal(data, &i.state)
	}
	if i.state.Marketplaces == nil {
		i.state.Marketplaces = map[string]string{}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read which plugins are installed: %w", err)
	}
	return nil
}

func (i *plugins) store() error {
	data, err := json.Marshal(i.state)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(i.file()), 0o700), os.WriteFile(i.file(), data, 0o600))
}
