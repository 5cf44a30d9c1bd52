package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// installTime limits the install command of one server.
const installTime = 15 * time.Minute

// Servers returns the MCP servers of a profile as the agent must start them: a server with
// files runs in the folder of these files.
func Servers(s runnerscripts.Session, p runnerscripts.Profile) []runnerscripts.MCPServer {
	servers := slices.Clone(p.MCPServers)
	for i, m := range servers {
		if len(m.Files) > 0 || m.Install != "" {
			servers[i].Command = slices.Concat([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, serverFolder(s, m)}, m.Command)
		}
	}
	return servers
}

// Variable matches a reference ${NAME} to the agent's environment in the environment or headers
// of a server. Its group is the name.
var Variable = Pattern{Expr: `\$\{([A-Za-z_][A-Za-z0-9_]*)\}`}

// Expand returns servers with the variables in their environments and headers replaced by their
// values in env, the agent's environment. It is for agents that receive their servers over a
// pipe: the values must not be written to a file.
func Expand(servers []runnerscripts.MCPServer, env []string) ([]runnerscripts.MCPServer, error) {
	vars := map[string]string{}
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			vars[name] = value
		}
	}
	expanded := slices.Clone(servers)
	for i, m := range expanded {
		var err error
		if expanded[i].Env, err = expandAll(m.Name, m.Env, vars); err != nil {
			return nil, err
		}
		if expanded[i].Headers, err = expandAll(m.Name, m.Headers, vars); err != nil {
			return nil, err
		}
	}
	return expanded, nil
}

func expandAll(server string, values, vars map[string]string) (map[string]string, error) {
	expanded := maps.Clone(values)
	for key, value := range values {
		for _, m := range Variable.Get().FindAllStringSubmatch(value, -1) {
			if _, ok := vars[m[1]]; !ok {
				return nil, Invalid("give the agent the variable %s in agent.env: %s of the MCP server %q names it", m[1], key, server)
			}
		}
		expanded[key] = Variable.Get().ReplaceAllStringFunc(value, func(s string) string { return vars[s[2:len(s)-1]] })
	}
	return expanded, nil
}

func serverFolder(s runnerscripts.Session, m runnerscripts.MCPServer) string {
	return filepath.Join(s.Paths.Home, filepath.FromSlash(ownFolder), "mcp", m.Name)
}

// InstallServers writes the files of MCP servers that have some, and runs their install
// commands, once for each content. env is the agent's environment.
func InstallServers(ctx context.Context, s runnerscripts.Session, p runnerscripts.Profile, env []string) error {
	for _, m := range p.MCPServers {
		if len(m.Files) == 0 && m.Install == "" {
			continue
		}
		if err := installServer(ctx, s, m, env); err != nil {
			return err
		}
	}
	return nil
}

func installServer(ctx context.Context, s runnerscripts.Session, m runnerscripts.MCPServer, env []string) error {
	content, err := json.Marshal([]any{m.Files, m.Install})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	dir := serverFolder(s, m)
	stamp := dir + ".installed"
	if done, err := os.ReadFile(stamp); err == nil && string(done) == hex.EncodeToString(sum[:]) {
		return nil
	}
	// Remove the files of an earlier version or of a failed install.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("write the MCP server %q: %w", m.Name, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write the MCP server %q: %w", m.Name, err)
	}
	defer func() { _ = root.Close() }()
	for _, f := range m.Files {
		if err := writeBelow(root, f); err != nil {
			return fmt.Errorf("write %s of the MCP server %q: %w", path.Clean(f.Path), m.Name, err)
		}
	}
	if err := runInstall(ctx, m, dir, env); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(hex.EncodeToString(sum[:])), 0o600)
}

func runInstall(ctx context.Context, m runnerscripts.MCPServer, dir string, env []string) error {
	if m.Install == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", m.Install)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	const tail = 2 << 10
	return Invalid("correct the install command of the MCP server %q, or what it needs in the sandbox: %v: %s",
		m.Name, err, strings.TrimSpace(string(out[max(0, len(out)-tail):])))
}
