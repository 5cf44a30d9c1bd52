package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	buildFlags = "-trimpath -buildvcs=false -tags=nethttpomithttp2 -ldflags=-s -w"
	// shownOutput is how much of a failed go command's output its error shows.
	shownOutput = 4 << 10
	goGrace     = 5 * time.Second
)

// build builds the runner from the source that this program was built from.
func (f *finder) build(ctx context.Context, to string) error {
	f.cfg.Progress(fmt.Sprintf("building the runner for %s with the Go toolchain; this is done once and takes some seconds", f.platform()))
	src := f.source
	if src == "" {
		var err error
		if src, err = f.download(ctx, filepath.Dir(to)); err != nil {
			return err
		}
	}
	ldflags := "-s -w"
	if f.version != "" {
		ldflags += " -X main.buildVersion=" + f.version
	}
	_, err := f.goCommand(ctx, src, "build", "-trimpath", "-buildvcs=false", "-tags=nethttpomithttp2", "-ldflags", ldflags, "-o", to, "./runnerscripts/runner")
	return err
}

// download downloads the source of the release into the module cache. It works in a separate module
// in scratch: otherwise the go command would use, and change, any go.mod above.
func (f *finder) download(ctx context.Context, scratch string) (dir string, err error) {
	if err := os.WriteFile(filepath.Join(scratch, "go.mod"), []byte("module download\n"), 0o600); err != nil {
		return "", err
	}
	out, err := f.goCommand(ctx, scratch, "mod", "download", "-json", module+"@"+f.version)
	if err != nil {
		return "", err
	}
	var mod struct{ Dir string }
	if err := json.Unmarshal(out, &mod); err != nil || mod.Dir == "" {
		return "", fmt.Errorf("go mod download said nothing of a folder: %q", tail(out))
	}
	return mod.Dir, nil
}

// goCommand runs the go command and returns what it prints.
func (f *finder) goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	tool, err := goTool()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = goGrace
	// The user's own build settings must not change this build: vendoring, workspaces, the race
	// detector, newer processors.
	cmd.Env = append(os.Environ(),
		"CGO_ENABLED=0", "GOOS="+f.cfg.OS, "GOARCH="+f.cfg.Arch, "PWD="+dir,
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GO111MODULE=on", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0",
	)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("go %s in %s: %w: %s", args[0], dir, err, tail(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// goTool returns the go command: the one in PATH, else the one in GOROOT.
func goTool() (string, error) {
	tool, err := exec.LookPath("go")
	if err == nil {
		return tool, nil
	}
	if root := os.Getenv("GOROOT"); root != "" {
		tool := filepath.Join(root, "bin", "go")
		if usable(tool) == nil {
			return tool, nil
		}
	}
	return "", fmt.Errorf("there is no go command: %w; install %s or later", err, strings.TrimPrefix(runtime.Version(), "devel "))
}

func tail(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > shownOutput {
		b = append([]byte("..."), b[len(b)-shownOutput:]...)
	}
	return string(b)
}
