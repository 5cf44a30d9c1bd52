package sessionapi

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Whatever the server's program can tell apart, a client can.
func TestEachErrorIsTheSameOnBothSides(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range Codes() {
		if names[c.Name] || c.Status < 400 {
			t.Errorf("the code %q with the status %d is taken, or no error", c.Name, c.Status)
		}
		names[c.Name] = true
		found, ok := Codes().Of(fmt.Errorf("do: %w", c.Err))
		if !ok || found.Name != c.Name {
			t.Errorf("%v is %q, want %q", c.Err, found.Name, c.Name)
		}
		back := Codes().Err(apierror.Error{Code: c.Name, Message: "what"})
		if !errors.Is(back, c.Err) || back.Error() != "what" {
			t.Errorf("%q is %v, want %v", c.Name, back, c.Err)
		}
	}
	if _, ok := Codes().Of(errors.New("another")); ok {
		t.Error("an error of no kind has a code")
	}
	if err := Codes().Err(apierror.Error{Code: "of the future"}); !errors.Is(err, apierror.ErrInternal) {
		t.Errorf("an unknown code: %v", err)
	}
}

func TestAnErrorOfSeveralKindsHasTheMostSpecificCode(t *testing.T) {
	for err, want := range map[error]string{
		&store.Error{Op: "load", Err: errors.Join(fs.ErrNotExist, store.ErrNotFound)}: "session_not_found",
		errors.Join(fs.ErrInvalid, session.ErrPruned):                                 "pruned",
	} {
		if c, _ := Codes().Of(err); c.Name != want {
			t.Errorf("%v is %q, want %q", err, c.Name, want)
		}
	}
}
