package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// engineTimeout is how long an engine may take to say what it is.
const engineTimeout = 15 * time.Second

// checkDocker looks at the engine and at what sandboxes need there. Without an
// engine only containers do not work, and failed is the status of that.
func checkDocker(ctx context.Context, cfg environment.Config, failed string) []finding {
	engine := finding{Check: "docker engine", Status: failed}
	if !cfg.Sandbox.Docker.Present() {
		engine.Detail = "nothing says that there is one"
		engine.Fix = "for --sandbox docker: install Docker and start it, or name an engine in DOCKER_HOST or by 'docker context use'"
		return []finding{engine}
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	info, err := cfg.Sandbox.Docker.Describe(ctx)
	if err != nil {
		engine.Detail, engine.Fix = remedy(err)
		return []finding{engine}
	}
	engine.Status = statusOK
	engine.Detail = fmt.Sprintf("%s, API %s, %s/%s, at %s (%s)", info.Version, info.API, info.OS, info.Arch, info.Host, info.FoundBy)
	return []finding{engine, checkImage(ctx, cfg), checkStorage(info), checkLimits(info), checkEngineRunner(ctx, cfg, info)}
}

// remedy tells apart what is wrong and what to do about it, where the error says that.
func remedy(err error) (detail, fix string) {
	var advised interface {
		error
		Advice() string
	}
	if !errors.As(err, &advised) {
		return err.Error(), ""
	}
	fix = advised.Advice()
	return strings.Replace(err.Error(), "; "+fix, "", 1), fix
}

// checkImage asks the engine for the image of sandboxes.
func checkImage(ctx context.Context, cfg environment.Config) finding {
	ref := firstOf(cfg.Sandbox.Image, environment.DefaultImage)
	f := finding{Check: "docker image", Status: statusOK, Detail: ref}
	switch has, err := cfg.Sandbox.Docker.HasImage(ctx, ref); {
	case err != nil:
		f.Status = statusMissing
		f.Detail, f.Fix = remedy(err)
	case !has && cfg.Sandbox.Docker.Pull == docker.PullNever:
		f.Status, f.Detail = statusMissing, ref+" is not there, and pull is never"
		f.Fix = "get it with: docker pull " + ref
	case !has:
		f.Status, f.Detail = statusMissing, ref+" is not there yet; the first sandbox fetches it"
		f.Fix = "get it now, for example to work without a network, with: docker pull " + ref
	}
	return f
}

func checkStorage(info docker.EngineInfo) finding {
	f := finding{Check: "docker storage", Status: statusOK, Detail: info.StorageDriver}
	if info.StorageDriver == "vfs" || info.StorageDriver == "devicemapper" {
		f.Status, f.Detail = statusMissing, info.StorageDriver+" copies the whole image for every container"
		f.Fix = `let the engine use overlay2: "storage-driver" in its daemon.json`
	}
	return f
}

func checkLimits(info docker.EngineInfo) finding {
	f := finding{Check: "docker limits", Status: statusOK, Detail: "control groups version " + info.CgroupVersion}
	if len(info.Warnings) > 0 {
		f.Status = statusMissing
		f.Detail += "; the engine says: " + strings.Join(info.Warnings, "; ")
		f.Fix = "limits of containers may not hold: see https://docs.docker.com/engine/install/troubleshoot/"
	}
	return f
}

func checkEngineRunner(ctx context.Context, cfg environment.Config, info docker.EngineInfo) finding {
	f := finding{Check: "docker runner", Status: statusOK}
	name, err := bundle.Path(ctx, bundle.Config{Explicit: cfg.Runner, OS: "linux", Arch: info.Arch})
	if f.Detail = name; err != nil {
		f.Status, f.Detail = statusMissing, "linux/"+info.Arch+": "+err.Error()
		f.Fix = "without it agents do not run in containers, and commands and files there are slow"
	}
	return f
}
