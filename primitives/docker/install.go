package docker

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"
)

// install copies what the guest needs into a container that was not started yet. If the guest needs
// nothing install makes no request: even a small copy takes the engine 50 ms.
func install(ctx context.Context, eng *client.Client, id string, cfg config) error {
	if cfg.sharedRunner != "" && cfg.ownFolders {
		return nil
	}
	into := "/"
	if cfg.guestInVolume() {
		into = guestDir
	}
	var workspace *tar.Header
	if cfg.Workspace == "" && !cfg.ownFolders {
		workspace = workspaceHeader(ctx, eng, id, cfg)
	}
	return unpackInto(ctx, eng, id, into, func(w io.Writer) error { return packGuest(w, cfg, into, workspace) })
}

// installRunner copies the runner alone into a container that was not started yet, and whose image
// has the guest's folders.
func installRunner(ctx context.Context, eng *client.Client, id string, open runnerOpener) error {
	f, err := open(ctx)
	if err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return unpackInto(ctx, eng, id, guestDir, func(w io.Writer) error {
		tw := tar.NewWriter(w)
		h := f.header()
		h.Name = path.Base(h.Name)
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, f); err != nil {
			return err
		}
		return tw.Close()
	})
}

// installBeside copies a runner of this machine into a container that has a guest of another
// release, and returns its path there and its digest. The name ends with the digest of its content.
func installBeside(ctx context.Context, eng *client.Client, id, runner string) (program, sum string, err error) {
	f, err := openRunnerFile(runner)
	if err != nil {
		return "", "", fmt.Errorf("runner: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(f)
	if err != nil {
		return "", "", fmt.Errorf("runner: %w", err)
	}
	digest := sha256.Sum256(data)
	sum = hex.EncodeToString(digest[:])
	program = guestProgram + "-" + sum[:16]
	return program, sum, unpackInto(ctx, eng, id, guestDir, func(w io.Writer) error {
		tw := tar.NewWriter(w)
		h := &tar.Header{Name: path.Base(program), Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(data))}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
		return tw.Close()
	})
}

// unpackInto makes the engine unpack the archive that pack writes into a folder of a container.
func unpackInto(ctx context.Context, eng *client.Client, id, into string, pack func(io.Writer) error) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w)
		_ = w.CloseWithError(err) // nil is io.EOF for the reader
		packed <- err
	}()
	err := eng.CopyToContainer(ctx, id, into, r, container.CopyToContainerOptions{})
	_ = r.CloseWithError(errInstallEnded)
	// The engine's client closes the pipe, too, when the engine refuses.
	if perr := <-packed; perr != nil && !errors.Is(perr, errInstallEnded) && !errors.Is(perr, io.ErrClosedPipe) {
		return fmt.Errorf("runner: %w", perr)
	}
	if err != nil {
		return fmt.Errorf("copy the runner into the container: %w", err)
	}
	return nil
}

var errInstallEnded = errors.New("the engine takes no more of the archive")

// runnerSum returns the digest of a runner of this machine.
func runnerSum(name string) (sum string, err error) {
	f, err := openRunnerFile(name)
	if err != nil {
		return "", fmt.Errorf("runner: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	digest := sha256.New()
	if _, err := io.Copy(digest, f); err != nil {
		return "", fmt.Errorf("runner: %w", err)
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// RunnerPath implements primitives.RunnerHolder. A handle of another program knows a runner that was
// copied into the container by its digest, and not a mounted one: the file may have changed since.
func (d *driver) RunnerPath(file string) string {
	if file == "" {
		return ""
	}
	if file == d.cfg.Runner {
		return d.program
	}
	if d.cfg.RunnerSum == "" {
		return ""
	}
	if sum, err := runnerSum(file); err != nil || sum != d.cfg.RunnerSum {
		return ""
	}
	return d.program
}

// runnerFile is the guest's program, open for reading.
type runnerFile struct {
	io.ReadCloser
	size int64
}

// runnerOpener opens the runner on demand.
type runnerOpener func(context.Context) (*runnerFile, error)

// checkRunner refuses a missing file, before an error about it can be mistaken for one of the
// engine.
func (c config) checkRunner() error {
	if c.Runner == "" {
		return c.invalid("runner", "it is empty; name the envrunner program for the engine's platform, which is the guest in the container")
	}
	info, err := os.Stat(c.Runner)
	if err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if !info.Mode().IsRegular() {
		return c.invalid("runner", c.Runner+" is not a regular file; name the envrunner program for the engine's platform")
	}
	return nil
}

// openRunnerFile opens a runner of this machine.
func openRunnerFile(name string) (*runnerFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &runnerFile{f, info.Size()}, nil
}

func (f *runnerFile) header() *tar.Header {
	return &tar.Header{Name: guestProgram, Mode: 0o755, Typeflag: tar.TypeReg, Size: f.size}
}

// packGuest writes a tar stream that is unpacked into a folder: the guest's folders, the workspace unless
// that is nil, and its program unless that is mounted. The container's user, whose number only the engine knows, makes
// sandboxes there. So their folder is like /tmp: writable for all users, with the sticky bit.
func packGuest(w io.Writer, cfg config, into string, workspace *tar.Header) error {
	headers := []*tar.Header{
		{Name: guestDir, Mode: 0o755, Typeflag: tar.TypeDir},
		{Name: guestRoot, Mode: 0o1777, Typeflag: tar.TypeDir},
	}
	if workspace != nil {
		headers = append(headers, workspace)
	}
	var program io.Reader = strings.NewReader("")
	if cfg.sharedRunner == "" {
		f, err := openRunnerFile(cfg.Runner)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		program = f
		headers = append(headers, f.header())
	}
	tw := tar.NewWriter(w)
	for _, h := range headers {
		if h.Name == into {
			continue
		}
		h.Name = strings.TrimPrefix(strings.TrimPrefix(h.Name, into), "/")
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
	}
	if _, err := io.Copy(tw, program); err != nil {
		return err
	}
	return tw.Close()
}

// runnerMount mounts the runner where install would copy it to.
func runnerMount(file string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: file, Target: guestProgram, ReadOnly: true}
}

// mountedRunner returns the path of the runner that an existing container mounts, or "" if the
// container has a copy.
func mountedRunner(mounts []container.MountPoint) string {
	for _, m := range mounts {
		if m.Destination == guestProgram {
			return m.Source
		}
	}
	return ""
}

// makesFolders reports whether the guest can make its own folders, for its user only:
// it runs as root and without the capability to switch to another user.
func (c config) makesFolders() bool {
	name, _, _ := strings.Cut(c.runsAs, ":")
	return len(c.CapAdd) == 0 && (name == "" || name == "0" || name == "root")
}

// guestRuns returns nil if the runner can be the guest of a container. A static program of the
// engine's platform also runs in an image for another platform: the kernel is the same.
func guestRuns(ctx context.Context, eng *client.Client, cfg config, img image.InspectResponse) error {
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

// runnerArch returns the architecture of a runner, as in runtime.GOARCH.
func runnerArch(file string) (string, error) {
	f, err := elf.Open(file)
	if err != nil {
		_, wrong := errors.AsType[*elf.FormatError](err)
		if wrong || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // short
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
