//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// benchModalFiles compares file operations with those of the SDK.
func benchModalFiles(ctx context.Context) (rows []row, err error) {
	err = withModal(ctx, func(m *modalSide) error {
		return m.withBoth(ctx, func(base *sdk.Sandbox, ours *guest.Sandbox) error {
			for _, bench := range []func(context.Context, *sdk.Sandbox, *guest.Sandbox) ([]row, error){m.smallFile, m.manyFiles, m.greatFile} {
				r, err := bench(ctx, base, ours)
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

func (m *modalSide) smallFile(ctx context.Context, base *sdk.Sandbox, ours *guest.Sandbox) (rows []row, err error) {
	content := make([]byte, 1024)
	for _, c := range []struct {
		name, base   string
		theirs, mine func() error
	}{
		{
			"modal write of 1 KiB", "SDK WriteBytes",
			func() error { return base.Filesystem.WriteBytes(ctx, content, "/tmp/small", nil) },
			func() error { return ours.WriteFile(ctx, "small", bytes.NewReader(content), primitives.WriteOptions{}) },
		},
		{
			"modal read of 1 KiB", "SDK ReadBytes",
			func() error { _, err := base.Filesystem.ReadBytes(ctx, "/tmp/small", nil); return err },
			func() error { _, err := primitives.ReadFile(ctx, ours, "small", 0); return err },
		},
	} {
		took, err := compete(20, clocked(5, c.theirs), clocked(20, c.mine))
		if err != nil {
			return nil, err
		}
		calls, err := m.callsRow(c.name, c.base, 100, c.theirs, c.mine, 0.5)
		if err != nil {
			return nil, err
		}
		rows = append(rows, speedupRow(c.name+", p50", c.base, mid(took[0]), mid(took[1]), 2), calls)
	}
	return rows, nil
}

// manyFiles takes the fastest of several rounds in fresh folders.
func (m *modalSide) manyFiles(ctx context.Context, base *sdk.Sandbox, ours *guest.Sandbox) (rows []row, err error) {
	round := 0
	fresh := func() string {
		round++
		return fmt.Sprintf("many%d", round)
	}
	theirs := func() error {
		for _, f := range batch("/tmp/" + fresh()) {
			if err := base.Filesystem.WriteBytes(ctx, f.Content, f.Path, nil); err != nil {
				return err
			}
		}
		return nil
	}
	mine := func() error { return writeBatch(ctx, ours, fresh()) }
	took, err := compete(3, clocked(1, theirs), clocked(3, mine))
	if err != nil {
		return nil, err
	}
	calls, err := m.callsRow("modal 1000 x 4 KiB files", "1000 SDK WriteBytes", 1, theirs, mine, 0.05)
	return []row{speedupRow("modal 1000 x 4 KiB files", "1000 SDK WriteBytes", took[0][0], took[1][0], 20), calls}, err
}

// modalGreat is the size of a large file.
const modalGreat = 64 << 20

func (m *modalSide) greatFile(ctx context.Context, base *sdk.Sandbox, ours *guest.Sandbox) (rows []row, err error) {
	content := make([]byte, modalGreat)
	wrote, err := compete(4,
		clocked(1, func() error { return base.Filesystem.WriteBytes(ctx, content, "/tmp/great", nil) }),
		clocked(1, func() error { return ours.WriteFile(ctx, "great", bytes.NewReader(content), primitives.WriteOptions{}) }))
	if err != nil {
		return nil, err
	}
	whole := func(n int64, err error) error {
		if err == nil && n != modalGreat {
			err = fmt.Errorf("%d bytes of %d arrived", n, modalGreat)
		}
		return err
	}
	read, err := compete(4,
		clocked(1, func() error {
			b, err := base.Filesystem.ReadBytes(ctx, "/tmp/great", nil)
			return whole(int64(len(b)), err)
		}),
		clocked(1, func() error {
			r, err := ours.Open(ctx, "great")
			if err != nil {
				return err
			}
			n, err := discard(io.Reader(r))
			return errors.Join(whole(n, err), r.Close())
		}))
	if err != nil {
		return nil, err
	}
	return []row{
		speedupRow("modal write of 64 MiB", "SDK WriteBytes", mid(wrote[0]), mid(wrote[1]), 1),
		speedupRow("modal read of 64 MiB", "SDK ReadBytes", mid(read[0]), mid(read[1]), 1),
	}, nil
}
