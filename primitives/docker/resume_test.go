package docker

import (
	"context"
	"errors"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

func TestAnEngineMayTakeAResumedContainerForPausedOnceMore(t *testing.T) {
	t.Parallel()
	paused, broken := errors.Join(errors.New("is paused"), cerrdefs.ErrConflict), errors.New("broken")
	for _, c := range []struct {
		name    string
		answers []error
		want    error
	}{
		{"not at all", []error{nil}, nil},
		{"twice", []error{paused, paused, nil}, nil},
		{"then it fails", []error{paused, broken}, broken},
		{"another failure", []error{broken}, broken},
	} {
		calls := 0
		err := afterResume(t.Context(), func() error {
			calls++
			return c.answers[calls-1]
		})()
		if !errors.Is(err, c.want) || calls != len(c.answers) {
			t.Errorf("%s: %v after %d calls", c.name, err, calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := afterResume(ctx, func() error { return paused })(); !errors.Is(err, paused) {
		t.Errorf("cancelled: %v", err)
	}
}
