package docker

import (
	"context"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

var (
	_ primitives.Provider    = Provider{}
	_ primitives.SpecChecker = Provider{}
	_ primitives.Collector   = Provider{}
	_ primitives.Historian   = Provider{}
	_ primitives.ImageStore  = Provider{}
	_ primitives.Detector    = Provider{}
	_ primitives.Examiner    = Provider{}
	_ primitives.PathHolder  = (*Provider)(nil)
)

// Examine checks the engine, the image of spec, the storage, the limits and the runner.
func (p Provider) Examine(ctx context.Context, spec primitives.Spec) []primitives.Finding {
	if !p.Present() {
		return []primitives.Finding{{
			Subject: "engine", Status: primitives.FindingFailed, Detail: "nothing says that there is one",
			Advice: "install Docker and start it, or name an engine in DOCKER_HOST or by 'docker context use'",
		}}
	}
	var info system.Info
	var version types.Version
	found := primitives.Finding{Subject: "engine"}
	found.Err = p.ask("describe", func(eng *client.Client) (err error) {
		if info, err = eng.Info(ctx); err != nil {
			return err
		}
		version, err = eng.ServerVersion(ctx)
		found.Detail = fmt.Sprintf("%s, API %s, %s/%s, at %s (%s)",
			version.Version, eng.ClientVersion(), version.Os, version.Arch, eng.DaemonHost(), engine.FoundBy(p.Host))
		return err
	})
	if found.Err != nil {
		found.Status, found.Detail = primitives.FindingFailed, ""
		return []primitives.Finding{found}
	}
	return []primitives.Finding{found, p.examineImage(ctx, spec.Image), examineStorage(info), examineLimits(info), p.examineRunner(ctx, version.Arch)}
}

// examineImage checks whether the engine has an image. It fetches nothing.
func (p Provider) examineImage(ctx context.Context, ref string) primitives.Finding {
	f := primitives.Finding{Subject: "image", Detail: ref}
	switch has, err := p.hasImage(ctx, ref); {
	case err != nil:
		f.Status, f.Detail, f.Err = primitives.FindingMissing, "", err
	case !has && p.Pull == PullNever:
		f.Status, f.Detail = primitives.FindingMissing, ref+" is not there, and pull is never"
		f.Advice = "get it with: docker pull " + ref
	case !has:
		f.Status, f.Detail = primitives.FindingMissing, ref+" is not there yet; the first sandbox fetches it"
		f.Advice = "get it now, for example to work without a network, with: docker pull " + ref
	}
	return f
}

// hasImage reports whether the engine has an image, by its name or ID.
func (p Provider) hasImage(ctx context.Context, ref string) (bool, error) {
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

func examineStorage(info system.Info) primitives.Finding {
	f := primitives.Finding{Subject: "storage", Detail: info.Driver}
	if info.Driver == "vfs" || info.Driver == "devicemapper" {
		f.Status, f.Detail = primitives.FindingMissing, info.Driver+" copies the whole image for every container"
		f.Advice = `let the engine use overlay2: "storage-driver" in its daemon.json`
	}
	return f
}

func examineLimits(info system.Info) primitives.Finding {
	f := primitives.Finding{Subject: "limits", Detail: "control groups version " + info.CgroupVersion}
	if len(info.Warnings) > 0 {
		f.Status = primitives.FindingMissing
		f.Detail += "; the engine says: " + strings.Join(info.Warnings, "; ")
		f.Advice = "limits of containers may not hold: see https://docs.docker.com/engine/install/troubleshoot/"
	}
	return f
}

// examineRunner finds the runner for the engine's machine.
func (p Provider) examineRunner(ctx context.Context, arch string) primitives.Finding {
	f := primitives.Finding{Subject: "runner"}
	if p.Runner == nil {
		return primitives.Finding{Subject: "runner", Status: primitives.FindingFailed, Detail: "Runner is nil", Advice: "set it, for example to bundle.Find"}
	}
	var err error
	if f.Detail, err = p.Runner(ctx, "linux", arch); err != nil {
		f.Status, f.Detail = primitives.FindingFailed, "linux/"+arch+": "+err.Error()
		f.Advice = "no container can be a sandbox without it"
	}
	return f
}

// arch returns the architecture of an engine's machine, as in runtime.GOARCH. The runner must be
// built for it.
func (p Provider) arch(ctx context.Context) (string, error) {
	var arch string
	err := p.ask("describe", func(eng *client.Client) error {
		v, err := eng.ServerVersion(ctx)
		arch = v.Arch
		return err
	})
	return arch, err
}

// ask connects to the engine and calls question.
func (p Provider) ask(op string, question func(*client.Client) error) error {
	return p.askAbout(op, "", question)
}

// askAbout is ask with a target for errors.
func (p Provider) askAbout(op, target string, question func(*client.Client) error) error {
	eng, err := engine.Connect(p.Host)
	if err != nil {
		return wrap(op, target, err)
	}
	defer func() { _ = eng.Close() }() // all calls have ended
	return wrap(op, target, engine.Explain(eng, question(eng)))
}

// Present reports whether the environment, a context of the docker command, or the default socket
// indicates an engine. It does not contact the engine.
func (p Provider) Present() bool { return engine.Present(p.Host) }
