package testdocker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the script that makes the Debian image
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

// Scratch returns the name of an empty image.
func Scratch(t testing.TB) string {
	t.Helper()
	ref, err := ensure(t.Context(), Engine(t), "scratch", nil)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// Busybox returns the name of an image with a static busybox and its commands in /bin, with
// /tmp, and with the users root and tester (1000:1000).
func Busybox(t testing.TB) string {
	t.Helper()
	ref, err := ensureBusybox(t.Context(), Engine(t))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func ensureBusybox(ctx context.Context, eng *client.Client) (string, error) {
	binary, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", fmt.Errorf("%s: %w", instruction, err)
	}
	entries := []entry{
		{tar.Header{Name: "bin/", Mode: 0o755, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}, nil},
		{tar.Header{Name: "bin/busybox", Mode: 0o755}, binary},
		{tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\ntester:x:1000:1000::/tmp:/bin/sh\n")},
		{tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\ntester:x:1000:\n")},
	}
	for _, name := range []string{
		"sh", "ls", "cat", "echo", "sleep", "true", "id", "env", "kill", "mkdir", "touch", "rm", "wget", "ps", "head",
		"chmod", "chown", "dd", "find", "grep", "ln", "mv", "readlink", "rmdir", "stat", "stty",
	} {
		entries = append(entries, entry{tar.Header{Name: "bin/" + name, Linkname: "busybox", Typeflag: tar.TypeSymlink}, nil})
	}
	return ensure(ctx, eng, "busybox", entries)
}

//go:embed debian.sh
var debianScript []byte

// debianCertificates has this machine's certificates, which the Debian image trusts.
const debianCertificates = "/etc/ssl/certs/ca-certificates.crt"

// Debian returns the name of an image with a minimal Debian that trusts the same certificates
// as this machine and has the user tester (1000:1000). The set-up builds it, which takes half a
// minute and root.
func Debian(t testing.TB) string {
	t.Helper()
	ref, err := FindDebian(t.Context(), Engine(t))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// FindDebian is like [Debian], for programs that are not tests.
func FindDebian(ctx context.Context, eng *client.Client) (string, error) {
	certificates, err := os.ReadFile(debianCertificates)
	if err != nil {
		return "", fmt.Errorf("%s: %w", instruction, err)
	}
	ref := reference("debian", debianScript, certificates)
	if _, err := eng.ImageInspect(ctx, ref); err != nil {
		return "", fmt.Errorf("%s: the image %s: %w", instruction, ref, err)
	}
	return ref, nil
}

// reference returns an image name that contains a digest of the image's sources.
func reference(name string, contents ...[]byte) string {
	sum := sha256.New()
	for _, c := range contents {
		_, _ = sum.Write(c) // never fails
	}
	return "agentenv-test-" + name + ":" + hex.EncodeToString(sum.Sum(nil)[:8])
}

// entry is a file of an image.
type entry struct {
	header  tar.Header
	content []byte
}

// ensure imports an image unless the engine has it, and returns its name.
func ensure(ctx context.Context, eng *client.Client, name string, entries []entry) (string, error) {
	archive, err := pack(entries)
	if err != nil {
		return "", err
	}
	ref := reference(name, archive)
	if found, err := has(ctx, eng, ref); found || err != nil {
		return ref, err
	}
	// The tests of several packages start at the same time. Every import would create another
	// image and move the name to it.
	unlock, err := lockImages(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if found, err := has(ctx, eng, ref); found || err != nil {
		return ref, err
	}
	source := image.ImportSource{Source: bytes.NewReader(archive), SourceName: "-"}
	body, err := eng.ImageImport(ctx, source, ref, image.ImportOptions{Changes: []string{"ENV IMAGE_MARK=from-image"}})
	if err == nil {
		_, err = io.Copy(io.Discard, body)
		_ = body.Close()
	}
	if err != nil {
		return "", fmt.Errorf("import the image %s: %w", ref, err)
	}
	return ref, nil
}

// has reports whether the engine has an image.
func has(ctx context.Context, eng *client.Client, ref string) (bool, error) {
	_, err := eng.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// lockImages prevents other tests, also of other programs, from importing images.
func lockImages(ctx context.Context) (unlock func(), err error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "agentenv")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return flock.Lock(ctx, filepath.Join(dir, "lock-test-images"), nil)
}

func pack(entries []entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.header.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
