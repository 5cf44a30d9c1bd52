package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
)

// plainImage is what an image offers where no guest can run.
type plainImage struct {
	uid       string // of the sandbox's own user
	grep      string // its path, if it has one
	readlink  string
	stty      string
	readsFour bool // its shell can read a number of characters
	moveExact int  // 1 if its mv has -T
	terminals bool
	note      string
}

// plainTools are the programs that an image must have where no guest can run.
func plainTools() []string {
	return []string{
		"cat", "chmod", "chown", "dd", "find", "ln", "mkdir", "mv", "readlink", "rm", "rmdir", "sleep", "stat",
	}
}

const plainNote = "there is no runner for this engine's platform, so the image's own shell and commands do the work: " +
	"no durable commands, no watching, slower; set runner to the envrunner program for the engine's platform for all of that"

// inspectImage finds out what the image's shell and commands can do.
func (p *plain) inspectImage(ctx context.Context) error {
	words := append([]string{"look", p.paths.App, "grep", "stty"}, plainTools()...)
	text, status, err := p.presence.do(ctx, words...)
	if err == nil {
		err = statusError(status, text)
	}
	if err != nil {
		return p.explain(ctx, err)
	}
	found := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		found[key] = value
	}
	var missing []string
	for _, tool := range plainTools() {
		if found[tool] == "" {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: without a guest the image needs %s; add them (busybox and coreutils with findutils have them), or set runner to the envrunner program for the engine's platform",
			errors.ErrUnsupported, strings.Join(missing, ", "))
	}
	p.image.grep, p.image.readlink, p.image.stty = found["grep"], found["readlink"], found["stty"]
	p.image.uid = found["uid"]
	p.image.readsFour = found["four"] != ""
	if found["exact"] != "" {
		p.image.moveExact = 1
	}
	// Old engines cannot give a terminal its size before the program runs.
	p.image.terminals = p.image.stty != "" || versions.GreaterThanOrEqualTo(p.eng.ClientVersion(), "1.42")
	p.image.note = plainNote
	if !p.image.terminals {
		p.image.note += "; no terminals, because the image has no stty"
	}
	return nil
}

// What a container says of how it is served. Each has all of it: what it does not say
// itself it would have from its image, which may be anybody's.
const (
	labelPlain     = labelPrefix + "plain"           // "true" or "false": it has no guest
	labelWorkspace = labelPrefix + "plain.workspace" // then: the workspace, if that is a folder of the engine's machine
	labelArch      = labelPrefix + "arch"            // the architecture of the image's programs
)

// looks are how often the first process looks during the grace whether a handle is
// connected.
const looks = 4

// plainConfig turns the configuration of a container with a guest into one of a
// container without.
func plainConfig(c *container.Config, cfg Config) {
	workspace := cfg.workspaceTarget()
	paths := plainPaths(workspace)
	pause := max(time.Second, cfg.grace()/looks)
	alone, spared := looks, 0
	switch {
	case cfg.Keep && cfg.expiry() == 0:
		alone, pause = 0, time.Hour
	case cfg.Keep:
		spared = int(math.Ceil(cfg.expiry().Seconds() / pause.Seconds()))
	}
	c.Entrypoint = []string{plainShell, "-c", firstScript, "agentenv"}
	c.Cmd = []string{
		paths.Session, paths.Workspace, strconv.Itoa(int(math.Ceil(pause.Seconds()))), strconv.Itoa(alone), strconv.Itoa(spared),
	}
	c.OpenStdin, c.StdinOnce, c.AttachStdin, c.AttachStdout, c.AttachStderr = false, false, false, false, false
	c.Env = append([]string{"HOME=" + paths.Home}, cfg.Env...)
	c.Labels[labelPlain], c.Labels[labelWorkspace] = "true", workspace
}

// startPlain starts a container without a guest.
func startPlain(ctx context.Context, eng *client.Client, id string, cfg Config) (*link, error) {
	_, err := eng.ContainerStatPath(ctx, id, plainShell)
	if cerrdefs.IsNotFound(err) {
		return nil, fmt.Errorf("%w: no guest can run on this engine and the image has no %s to work without one; choose an image with a shell, or set runner to the envrunner program for the engine's platform",
			errors.ErrUnsupported, plainShell)
	}
	if err != nil {
		return nil, err
	}
	into := "/"
	if cfg.ReadOnly {
		into = guestDir
	}
	folders, err := packFolders(into)
	if err != nil {
		return nil, err
	}
	if err := eng.CopyToContainer(ctx, id, into, folders, container.CopyToContainerOptions{}); err != nil {
		return nil, fmt.Errorf("make the folders in the container: %w", err)
	}
	if err := eng.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return nil, fmt.Errorf("start the container: %w", err)
	}
	workspace := cfg.workspaceTarget()
	return joinPlain(ctx, eng, id, workspace)
}

// packFolders packs the folder of sandboxes, as packGuest does.
func packFolders(into string) (*bytes.Buffer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if into != guestDir {
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(guestDir, "/"), Mode: 0o755, Typeflag: tar.TypeDir}); err != nil {
			return nil, err
		}
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(guestRoot, path.Clean(into)), "/")
	if err := w.WriteHeader(&tar.Header{Name: rel, Mode: 0o1777, Typeflag: tar.TypeDir}); err != nil {
		return nil, err
	}
	return &b, w.Close()
}
