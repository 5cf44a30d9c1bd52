package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
)

// EngineInfo describes an engine for people who look for what is wrong.
type EngineInfo struct {
	Host          string `json:"host"`     // its address
	FoundBy       string `json:"found_by"` // what says that it is there
	Version       string `json:"version"`
	API           string `json:"api"` // the version of its API that is spoken
	OS            string `json:"os"`
	Arch          string `json:"arch"` // as in runtime.GOARCH
	Kernel        string `json:"kernel"`
	StorageDriver string `json:"storage_driver"`
	CgroupVersion string `json:"cgroup_version"` // "1" or "2"
	// Warnings is what the engine says of its machine, such as limits that it
	// cannot set.
	Warnings []string `json:"warnings,omitempty"`
}

// Describe asks an engine what it is. Of cfg only Host counts. The errors of an
// engine that does not answer are those of [New].
func Describe(ctx context.Context, cfg Config) (EngineInfo, error) {
	var info EngineInfo
	err := ask("describe", cfg, func(eng *client.Client) error {
		found, err := eng.Info(ctx)
		if err != nil {
			return err
		}
		v, err := eng.ServerVersion(ctx)
		info = describe(eng, found, v)
		info.FoundBy = foundBy(cfg)
		return err
	})
	return info, err
}

// foundBy says what names the engine, in the order of findEngine.
func foundBy(cfg Config) string {
	if cfg.Host != "" {
		return "host"
	}
	for _, variable := range []string{client.EnvOverrideHost, "DOCKER_CONTEXT"} {
		if os.Getenv(variable) != "" {
			return variable
		}
	}
	if name := currentContext(); name != "" && name != "default" {
		return fmt.Sprintf("docker context %q", name)
	}
	return "the default address"
}

// currentContext is what 'docker context use' has set; empty if nothing.
func currentContext() string {
	var cfg struct {
		CurrentContext string `json:"currentContext"`
	}
	dir, err := configDir()
	if err == nil {
		err = readJSON(filepath.Join(dir, "config.json"), &cfg)
	}
	if err != nil {
		return "" // connecting says what is wrong with it
	}
	return cfg.CurrentContext
}

func describe(eng *client.Client, found system.Info, v types.Version) EngineInfo {
	return EngineInfo{
		Host: eng.DaemonHost(), Version: v.Version, API: eng.ClientVersion(), OS: v.Os, Arch: v.Arch,
		Kernel: found.KernelVersion, StorageDriver: found.Driver, CgroupVersion: found.CgroupVersion,
		Warnings: found.Warnings,
	}
}

// Arch returns the architecture of an engine's machine, as in runtime.GOARCH, for
// which [Config].Runner must be made. Of cfg only Host counts.
func Arch(ctx context.Context, cfg Config) (string, error) {
	var arch string
	err := ask("describe", cfg, func(eng *client.Client) error {
		v, err := eng.ServerVersion(ctx)
		arch = v.Arch
		return err
	})
	return arch, err
}

// ask connects to an engine for one question.
func ask(op string, cfg Config, question func(*client.Client) error) error {
	return askAbout(op, "", cfg, question)
}

// askAbout is ask about something that errors name.
func askAbout(op, target string, cfg Config, question func(*client.Client) error) error {
	eng, err := connect(cfg.Host)
	if err != nil {
		return wrap(op, target, err)
	}
	defer func() { _ = eng.Close() }() // no call is left
	return wrap(op, target, explain(eng, question(eng)))
}

// Present reports whether anything says that there should be an engine: the
// environment, a context of the docker command, or the default socket. It does not
// contact it.
func Present(cfg Config) bool {
	if cfg.Host != "" {
		return true
	}
	eng, err := connect("")
	if err != nil {
		return true // something is configured, and wrong
	}
	defer func() { _ = eng.Close() }() // it was not used
	socket, isDefault := strings.CutPrefix(client.DefaultDockerHost, "unix://")
	if !isDefault || eng.DaemonHost() != client.DefaultDockerHost {
		return true
	}
	_, err = os.Stat(socket)
	return err == nil
}
