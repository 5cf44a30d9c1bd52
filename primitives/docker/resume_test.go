package docker

import (
	"context"
	"errors"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

func TestAnEngineMayTakeAResumedContainerForPausedOnceMore(t *testing.T) {
	paused, broken := errors.Join(errors.New("is paused"), cerrdefs.ErrConflict), errors.New("broken")
	joined := &link{}
	for _, c := range []struct {
		name  string
		first error
		later []error
		want  error
	}{
		{"not at all", nil, nil, nil},
		{"twice", paused, []error{paused, nil}, nil},
		{"then it fails", paused, []error{broken}, broken},
		{"another failure", broken, nil, broken},
	} {
		calls := 0
		l, err := joinResumed(t.Context(), joined, c.first, func() (*link, error) {
			calls++
			return joined, c.later[calls-1]
		})
		if l != joined || !errors.Is(err, c.want) || calls != len(c.later) {
			t.Errorf("%s: %v after %d calls", c.name, err, calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := joinResumed(ctx, nil, paused, func() (*link, error) { return nil, paused }); !errors.Is(err, paused) {
		t.Errorf("cancelled: %v", err)
	}
}
