//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
)

// benchModalLife compares the life of a sandbox with that of a sandbox of the SDK alone: from
// its creation to the first command, and its end.
func benchModalLife(ctx context.Context) (rows []row, err error) {
	err = withModal(ctx, func(m *modalSide) error {
		theirs := func() (stages, error) { return m.sdkLife(ctx) }
		mine := func() (stages, error) { return m.ourLife(ctx) }
		var base, ours []stages
		for round := range 13 {
			b, o, err := inTurn(round%2 == 0, theirs, mine)
			if err != nil {
				return err
			}
			if round > 0 { // the first round uploads the runner
				base, ours = append(base, b), append(ours, o)
			}
		}
		first := func(s stages) time.Duration { return s.first }
		remove := func(s stages) time.Duration { return s.remove }
		made, err := m.callsRow("modal create to first exec and end", "SDK Create, Exec, Wait and Terminate", 5,
			func() error { _, err := theirs(); return err },
			func() error { _, err := mine(); return err }, 2.5)
		rows = []row{
			ratioRow("modal create to first exec", "SDK Create, Exec and Wait", "ms", lower, millis(middle(base, first)), millis(middle(ours, first)), 2.5),
			ratioRow("modal terminate", "SDK Terminate with Wait", "ms", lower, millis(middle(base, remove)), millis(middle(ours, remove)), 1.5),
			made,
		}
		return err
	})
	return rows, err
}

// inTurn calls both functions; straight says whether first goes first.
func inTurn(straight bool, first, second func() (stages, error)) (f, s stages, err error) {
	if straight {
		if f, err = first(); err == nil {
			s, err = second()
		}
		return f, s, err
	}
	if s, err = second(); err == nil {
		f, err = first()
	}
	return f, s, err
}

func (m *modalSide) sdkLife(ctx context.Context) (s stages, err error) {
	start := time.Now()
	box, err := m.create(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, box.Detach()) }()
	s.ready = time.Since(start)
	if err := sdkTrue(ctx, box); err != nil {
		return s, err
	}
	s.first = time.Since(start)
	start = time.Now()
	_, err = box.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: true})
	s.remove = time.Since(start)
	return s, err
}

func (m *modalSide) ourLife(ctx context.Context) (s stages, err error) {
	start := time.Now()
	box, err := m.open(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	s.ready = time.Since(start)
	if err := runTrue(ctx, box); err != nil {
		return s, err
	}
	s.first = time.Since(start)
	start = time.Now()
	_, err = box.Terminate(ctx)
	s.remove = time.Since(start)
	return s, err
}
