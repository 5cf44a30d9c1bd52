//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/primitives"
)

// benchDockerFiles compares file operations with the engine's archives.
func benchDockerFiles(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		id, err := e.create(ctx)
		if err != nil {
			return err
		}
		return e.withBoxes(ctx, nil, func(boxes []box) error {
			for _, bench := range []func(context.Context, string, []box) ([]row, error){e.smallFile, e.manyFiles, e.greatFile} {
				r, err := bench(ctx, id, boxes)
				if err != nil {
					return err
				}
				rows = append(rows, r...)
			}
			return nil
		})
	})
	return rows, err
}

func (e *engine) smallFile(ctx context.Context, id string, boxes []box) (rows []row, err error) {
	content := make([]byte, 1024)
	all := []contestant{clocked(1, func() error {
		archive, err := packed([]primitives.File{{Path: "small", Content: content}})
		if err != nil {
			return err
		}
		return e.CopyToContainer(ctx, id, "/tmp", archive, container.CopyToContainerOptions{})
	})}
	for _, b := range boxes {
		all = append(all, clocked(10, func() error {
			return b.WriteFile(ctx, "small", bytes.NewReader(content), primitives.WriteOptions{})
		}))
	}
	took, err := compete(40, all...)
	if err != nil {
		return nil, err
	}
	for i, b := range boxes {
		rows = append(rows, speedupRow("docker 1 KiB file over "+b.name, "CopyToContainer", mid(took[0]), mid(took[1+i]), 90))
	}
	return rows, nil
}

// packed returns an archive of files.
func packed(files []primitives.File) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{Name: f.Path, Mode: int64(cmp.Or(f.Mode, 0o644)), Size: int64(len(f.Content))})
		if err == nil {
			_, err = w.Write(f.Content)
		}
		if err != nil {
			return nil, err
		}
	}
	return &b, w.Close()
}

// manyFiles takes the fastest of several rounds in fresh folders, see
// filesAgainstRaw.
func (e *engine) manyFiles(ctx context.Context, id string, boxes []box) (rows []row, err error) {
	round := 0
	fresh := func() string {
		round++
		return fmt.Sprintf("many%d", round)
	}
	all := []contestant{clocked(1, func() error {
		archive, err := packed(batch(fresh()))
		if err != nil {
			return err
		}
		return e.CopyToContainer(ctx, id, "/tmp", archive, container.CopyToContainerOptions{})
	})}
	for _, b := range boxes {
		all = append(all, clocked(1, func() error { return writeBatch(ctx, b, fresh()) }))
	}
	root, err := e.rootOf(ctx, id)
	if err != nil {
		return nil, err
	}
	if root != "" {
		all = append(all, clocked(1, func() error { return rawFiles(filepath.Join(root, fresh())) }))
	}
	took, err := compete(engineRounds, all...)
	if err != nil {
		return nil, err
	}
	for i, b := range boxes {
		name, ours := "docker 1000 x 4 KiB files over "+b.name, took[1+i][0]
		rows = append(rows, speedupRow(name, "CopyToContainer", took[0][0], ours, b.pick(3, 4)))
		if root != "" {
			raw := took[len(took)-1][0]
			rows = append(rows, ratioRow(name, "the host in the same overlay", "ms", lower, millis(raw), millis(ours), 1.1))
		}
	}
	return rows, nil
}

// rootOf returns the folder of this machine that is the root of a container; empty if it cannot
// be reached, as for users other than root.
func (e *engine) rootOf(ctx context.Context, id string) (string, error) {
	found, err := e.ContainerInspect(ctx, id)
	if err != nil {
		return "", err
	}
	dir := found.GraphDriver.Data["MergedDir"]
	if _, err := os.Stat(filepath.Join(dir, "bin")); err != nil || dir == "" {
		return "", nil // it cannot be reached
	}
	return dir, nil
}

// greatSize is the size of a file that is too large to hold in memory twice.
const greatSize = 256 << 20

// greatFile writes a new file each time: an archive removes an old file first, while a sandbox
// keeps the old file until the new one is complete.
func (e *engine) greatFile(ctx context.Context, id string, boxes []box) (rows []row, err error) {
	write := []contestant{clockedAfter(
		func() error { return e.apiExec(ctx, id, io.Discard, "rm", "-f", "/tmp/great") },
		func() error { return e.archiveIn(ctx, id) },
	)}
	read := []contestant{clocked(1, func() error { return e.archiveOut(ctx, id) })}
	for _, b := range boxes {
		write = append(write, clockedAfter(func() error {
			if err := b.Remove(ctx, "great", false); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}, func() error {
			return b.WriteFile(ctx, "great", great(), primitives.WriteOptions{})
		}))
		read = append(read, clocked(1, func() error {
			r, err := b.Open(ctx, "great")
			if err != nil {
				return err
			}
			n, err := discard(r)
			if err == nil && n != greatSize {
				err = fmt.Errorf("%d bytes of %d arrived", n, greatSize)
			}
			return errors.Join(err, r.Close())
		}))
	}
	wrote, err := compete(engineRounds, write...)
	if err != nil {
		return nil, err
	}
	got, err := compete(engineRounds, read...)
	if err != nil {
		return nil, err
	}
	for i, b := range boxes {
		rows = append(rows,
			speedupRow("docker write of 256 MiB over "+b.name, "CopyToContainer", mid(wrote[0]), mid(wrote[1+i]), b.pick(0.4, 2)),
			speedupRow("docker read of 256 MiB over "+b.name, "CopyFromContainer", mid(got[0]), mid(got[1+i]), b.pick(0.5, 3.5)))
	}
	return rows, nil
}

// great returns the content of a file of greatSize.
func great() io.Reader { return io.LimitReader(zeros{}, greatSize) }

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (e *engine) archiveIn(ctx context.Context, id string) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Name: "great", Mode: 0o644, Size: greatSize})
		if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{t}, great(), make([]byte, 1<<20))
		}
		if err == nil {
			err = t.Close()
		}
		done <- errors.Join(err, w.CloseWithError(err))
	}()
	err := e.CopyToContainer(ctx, id, "/tmp", r, container.CopyToContainerOptions{})
	return errors.Join(err, r.Close(), <-done)
}

func (e *engine) archiveOut(ctx context.Context, id string) error {
	body, _, err := e.CopyFromContainer(ctx, id, "/tmp/great")
	if err != nil {
		return err
	}
	t := tar.NewReader(body)
	_, err = t.Next()
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{t}, make([]byte, 1<<20))
	}
	return errors.Join(err, body.Close())
}
