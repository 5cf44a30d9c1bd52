package guest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// TestAGuestThatKnowsNoBypassGetsTheStream has a guest refuse the first request as one
// does that does not know it.
func TestAGuestThatKnowsNoBypassGetsTheStream(t *testing.T) {
	f := newFake(t)
	var got []string
	f.onWrite = func(_ context.Context, name string, r io.Reader) error {
		if len(got) == 0 {
			got = append(got, "")
			return fault("write", name, errors.ErrUnsupported)
		}
		b, err := io.ReadAll(r)
		got = append(got, string(b))
		return err
	}
	c := connect(t, f, Config{Bypass: &Bypass{MinSize: 1}})
	for _, content := range []string{"first", "second"} {
		if err := c.WriteFile(t.Context(), "f", strings.NewReader(content), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Join(got, " ") != " first second" || c.bypass() != nil {
		t.Errorf("the guest got %q", got)
	}
}

// TestASandboxThatCannotStageGetsTheStream has one that only reads what is to be
// written.
func TestASandboxThatCannotStageGetsTheStream(t *testing.T) {
	c := connect(t, newFake(t), Config{Bypass: &Bypass{MinSize: 1}})
	for _, content := range []string{"first", "second"} {
		if err := c.WriteFile(t.Context(), "f", strings.NewReader(content), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := c.Open(t.Context(), "f")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); string(got) != content || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
}
