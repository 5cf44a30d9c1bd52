package docker

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// ensureImage returns the image, and fetches it first if the policy says so.
func ensureImage(ctx context.Context, eng *client.Client, cfg Config) (image.InspectResponse, error) {
	if cfg.Pull == PullAlways {
		if err := pull(ctx, eng, cfg); err != nil {
			return image.InspectResponse{}, err
		}
	}
	img, err := eng.ImageInspect(ctx, cfg.Image)
	switch {
	case cerrdefs.IsNotFound(err) && cfg.Pull == PullNever:
		return img, fmt.Errorf("fetch or build the image first, or set pull to missing: %w", err)
	case cerrdefs.IsNotFound(err) && cfg.Pull != PullAlways:
		if err = pull(ctx, eng, cfg); err == nil {
			img, err = eng.ImageInspect(ctx, cfg.Image)
		}
	}
	if err != nil {
		return img, err
	}
	if img.Os != "linux" {
		return img, fmt.Errorf("%w: the image is for %s; sandboxes need one for linux", errors.ErrUnsupported, img.Os)
	}
	want, _ := cfg.platform() // was checked
	if want[1] != "" && want[1] != img.Architecture {
		return img, fmt.Errorf("%w: the engine has the image for %s/%s only; set pull to always to fetch it for %s", errors.ErrUnsupported, img.Os, img.Architecture, cfg.Platform)
	}
	return img, nil
}

// guestRuns returns nil if the runner can be the guest of a container. A static
// program of the engine's platform runs also in an image for another one: the
// kernel is the same.
func guestRuns(ctx context.Context, eng *client.Client, cfg Config, img image.InspectResponse) error {
	arch, err := runnerArch(cfg.Runner)
	if err != nil || arch == img.Architecture {
		return err
	}
	version, err := eng.ServerVersion(ctx)
	if err == nil && arch != version.Arch {
		err = fmt.Errorf("%w: runner: %s is for linux/%s, the engine is linux/%s; name the envrunner program for the engine's platform", errors.ErrUnsupported, cfg.Runner, cmp.Or(arch, "another processor"), version.Arch)
	}
	return err
}

// runnerArch is the architecture of a runner, as in runtime.GOARCH.
func runnerArch(file string) (string, error) {
	f, err := elf.Open(file)
	if err != nil {
		_, wrong := errors.AsType[*elf.FormatError](err)
		if wrong || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it is short
			return "", fmt.Errorf("%w: runner: %s is no Linux program", fs.ErrInvalid, file)
		}
		return "", fmt.Errorf("runner: %w", err)
	}
	defer func() { _ = f.Close() }()
	machines := map[elf.Machine]string{
		elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_ARM: "arm", elf.EM_386: "386",
		elf.EM_RISCV: "riscv64", elf.EM_S390: "s390x", elf.EM_PPC64: "ppc64le",
	}
	return machines[f.Machine], nil
}
