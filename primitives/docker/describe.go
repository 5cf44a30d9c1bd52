package docker

import (
	"context"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
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

// Describe asks an engine what it is. The errors of an
// engine that does not answer are those of [Provider.Create].
func (p Provider) Describe(ctx context.Context) (EngineInfo, error) {
	var info EngineInfo
	err := p.ask("describe", func(eng *client.Client) error {
		found, err := eng.Info(ctx)
		if err != nil {
			return err
		}
		v, err := eng.ServerVersion(ctx)
		info = describe(eng, found, v)
		info.FoundBy = engine.FoundBy(p.Host)
		return err
	})
	return info, err
}

// HasImage reports whether an engine has an image, by its name or ID. It fetches nothing.
// The errors are those of [Provider.Describe].
func (p Provider) HasImage(ctx context.Context, ref string) (bool, error) {
	has := false
	err := p.askAbout("find image", ref, func(eng *client.Client) error {
		_, err := eng.ImageInspect(ctx, ref)
		if has = err == nil; cerrdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
	return has, err
}

func describe(eng *client.Client, found system.Info, v types.Version) EngineInfo {
	return EngineInfo{
		Host: eng.DaemonHost(), Version: v.Version, API: eng.ClientVersion(), OS: v.Os, Arch: v.Arch,
		Kernel: found.KernelVersion, StorageDriver: found.Driver, CgroupVersion: found.CgroupVersion,
		Warnings: found.Warnings,
	}
}

// Arch returns the architecture of an engine's machine, as in runtime.GOARCH, for
// which a runner must be made.
func (p Provider) arch(ctx context.Context) (string, error) {
	var arch string
	err := p.ask("describe", func(eng *client.Client) error {
		v, err := eng.ServerVersion(ctx)
		arch = v.Arch
		return err
	})
	return arch, err
}

// ask connects to an engine for one question.
func (p Provider) ask(op string, question func(*client.Client) error) error {
	return p.askAbout(op, "", question)
}

// askAbout is ask about something that errors name.
func (p Provider) askAbout(op, target string, question func(*client.Client) error) error {
	eng, err := engine.Connect(p.Host)
	if err != nil {
		return wrap(op, target, err)
	}
	defer func() { _ = eng.Close() }() // no call is left
	return wrap(op, target, engine.Explain(eng, question(eng)))
}

// Present reports whether anything says that there should be an engine: the
// environment, a context of the docker command, or the default socket. It does not
// contact it.
func (p Provider) Present() bool { return engine.Present(p.Host) }
