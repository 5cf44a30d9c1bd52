package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// install copies what the guest needs into a container that was not started yet,
// if that is anything: even little of it takes the engine 50 ms.
func install(ctx context.Context, eng *client.Client, id string, cfg Config) error {
	if cfg.sharedRunner != "" && cfg.ownFolders {
		return nil
	}
	// Of a read-only container only the volume takes files.
	into := "/"
	if cfg.ReadOnly {
		into = guestDir
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packGuest(w, cfg, into)
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

// packGuest writes the guest's folders, and its program unless that is mounted, as a
// tar stream to be unpacked in a folder. Sandboxes are made by the container's user,
// whose number only the engine knows: like /tmp, their folder is open to all and
// keeps their things apart.
func packGuest(w io.Writer, cfg Config, into string) error {
	headers := []*tar.Header{
		{Name: guestDir, Mode: 0o755, Typeflag: tar.TypeDir},
		{Name: guestRoot, Mode: 0o1777, Typeflag: tar.TypeDir},
	}
	var program io.Reader = strings.NewReader("")
	if cfg.sharedRunner == "" {
		f, err := os.Open(cfg.Runner)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		info, err := f.Stat()
		if err != nil {
			return err
		}
		program = f
		headers = append(headers, &tar.Header{Name: guestProgram, Mode: 0o755, Typeflag: tar.TypeReg, Size: info.Size()})
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
