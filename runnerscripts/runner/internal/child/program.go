package child

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/tail"
)

// versionTime is far above what programs need to print their version.
const versionTime = 2 * time.Minute

// Find returns argv with the absolute path of its program, looked up in the PATH of env. It
// skips relative folders in PATH: the program starts in the workspace, which may contain a file
// of that name.
func Find(argv, env []string) ([]string, error) {
	file, err := lookPath(argv[0], env)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err != nil {
		return nil, err
	}
	return append([]string{file}, argv[1:]...), nil
}

func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(Lookup(env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// Version returns the output of the program for --version, which also shows that it can run
// here.
func Version(ctx context.Context, argv, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], append(slices.Clone(argv[1:]), "--version")...)
	said := &tail.Buffer{}
	cmd.Env, cmd.Stderr, cmd.WaitDelay = env, said, drainTime
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w: %s", argv[0], err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// packageDepth is how deep a program may be below its package's folder: Codex is in
// vendor/TRIPLE/bin.
const packageDepth = 3

// PackagedVersion returns the version of a program's npm package, which is faster than starting
// the program. It returns "" if the program is not in a package whose name starts with name.
func PackagedVersion(argv []string, name string) string {
	file, err := filepath.EvalSymlinks(argv[0])
	if err != nil || len(argv) > 1 {
		return ""
	}
	dir := filepath.Dir(file)
	for range packageDepth + 1 {
		data, err := os.ReadFile(filepath.Join(dir, "package.json"))
		var pkg struct{ Name, Version string }
		if err == nil && json.Unmarshal(data, &pkg) == nil && strings.HasPrefix(pkg.Name, name) {
			return pkg.Version
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// Environ returns the runner's environment, which the sandbox has already filtered, overridden
// by each map in order. The result is sorted, without duplicates.
func Environ(over ...map[string]string) []string {
	vars := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok {
			vars[k] = v
		}
	}
	for _, m := range over {
		maps.Copy(vars, m)
	}
	env := make([]string, 0, len(vars))
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return env
}

// Lookup returns the value of a variable in an environment; empty if there is none.
func Lookup(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}
