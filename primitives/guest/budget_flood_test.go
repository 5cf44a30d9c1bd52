//go:build !race

package guest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFloodOfAListingThatNeverEndsIsBounded(t *testing.T) {
	c := endlessFolder(t)
	testmemory.AtMost(t, 3*primitives.MaxListing, func() {
		infos, err := c.List(t.Context(), "x", primitives.ListOptions{})
		if !errors.Is(err, primitives.ErrLimit) || errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "set a Limit") {
			t.Errorf("error %v", err)
		}
		if len(infos) < 100_000 {
			t.Errorf("%d entries, want those that fit", len(infos))
		}
	})
}

func TestFloodOfErrorsOfABatchIsBounded(t *testing.T) {
	const n = 4096
	files := make([]primitives.File, n)
	long := strings.Repeat("x", maxReply-1<<10)
	frames := make([][]byte, n)
	scripted := func(f *framer) {
		for i := range frames {
			item := &fileFailure{Index: i, Err: wireError{Text: long, Codes: slices.Repeat([]errCode{34}, 500)}}
			if f.sendMessage(frameItem, item) != nil {
				return
			}
		}
	}
	c := scriptedGuest(t, scripted)
	testmemory.AtMost(t, 64<<20, func() {
		if _, err := c.WriteFiles(t.Context(), files); !errors.Is(err, primitives.ErrLimit) {
			t.Errorf("error %v", err)
		}
	})
}

func TestFloodInAnErrorHoldsNoMoreThanAGuestPutsIntoOne(t *testing.T) {
	long := strings.Repeat("x", maxReply/2-1<<15)
	w := &wireError{Codes: slices.Repeat([]errCode{13}, 40_000), Where: &wireWhere{Target: long, Text: long}}
	c := scriptedGuest(t, func(f *framer) { _ = f.sendMessage(frameError, w) })
	errs := make([]error, 40)
	testmemory.AtMost(t, 16<<20, func() {
		for i := range errs {
			_, errs[i] = c.Stat(t.Context(), "x")
			if !errors.Is(errs[i], primitives.ErrLimit) {
				t.Fatal(errs[i])
			}
		}
	})
}
