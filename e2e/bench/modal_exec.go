//go:build linux

package main

import (
	"context"
	"io"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// benchModalExec compares single commands with those of the SDK, then 32 at once. The floor is
// starting a program and waiting for it.
func benchModalExec(ctx context.Context) (rows []row, err error) {
	err = withModal(ctx, func(m *modalSide) error {
		return m.withBoth(ctx, func(base *sdk.Sandbox, ours *guest.Sandbox) error {
			theirs := func() error { return sdkTrue(ctx, base) }
			mine := func() error { return runTrue(ctx, ours) }
			reading := func() error { return sdkExec(ctx, base, io.Discard, trueCommand.Args...) }
			took, err := compete(30, clocked(10, theirs), clocked(10, reading), clocked(10, mine), clocked(10, forkTrue))
			if err != nil {
				return err
			}
			const at, total = 32, 320
			many, err := compete(3,
				clocked(1, func() error { return parallel(total, at, theirs) }),
				clocked(1, func() error { return parallel(total, at, mine) }))
			if err != nil {
				return err
			}
			calls, err := m.callsRow("modal exec", "SDK Exec and Wait", 100, theirs, mine, 0.5)
			rows = []row{
				speedupRow("modal exec, p50", "SDK Exec and Wait", mid(took[0]), mid(took[2]), 2),
				speedupRow("modal exec, p50", "SDK Exec, read and Wait", mid(took[1]), mid(took[2]), 2),
				speedupRow("modal exec, most that is possible", "SDK Exec and Wait", mid(took[0]), mid(took[3]), 2),
				calls,
				ratioRow("modal exec rate at 32", "SDK Exec and Wait", "1/s", higher, rate(total, many[0][0]), rate(total, many[1][0]), 2),
			}
			return err
		})
	})
	return rows, err
}

// modalStreamSize is how many bytes a stream moves. The server keeps all that the SDK reads.
const modalStreamSize = 128 << 20

// benchModalStream compares reading the output of a command with the SDK's streams.
func benchModalStream(ctx context.Context) (rows []row, err error) {
	err = withModal(ctx, func(m *modalSide) error {
		return m.withBoth(ctx, func(base *sdk.Sandbox, ours *guest.Sandbox) error {
			took, err := compete(4,
				contestant{1, func() (time.Duration, error) {
					w := &counter{}
					err := sdkExec(ctx, base, w, flood(modalStreamSize)...)
					return w.took(modalStreamSize, err)
				}},
				clocked(1, func() error { return readStream(ctx, ours, modalStreamSize) }))
			if err != nil {
				return err
			}
			const mb = modalStreamSize / 1e6
			rows = []row{ratioRow("modal stream", "SDK Exec and its Stdout", "MB/s", higher, rate(mb, mid(took[0])), rate(mb, mid(took[1])), 1)}
			return nil
		})
	})
	return rows, err
}
