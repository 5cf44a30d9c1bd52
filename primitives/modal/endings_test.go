package modal_test

import (
	"context"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

func TestASandboxThatEndsBehindItsHandleSaysHow(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(t *testing.T, s *testmodal.Server, box *guest.Sandbox)
		want   error
		status primitives.Status
		reason primitives.ExitReason // of a command, if it is known
	}{
		{"terminated elsewhere", terminateElsewhere, primitives.ErrTerminated, primitives.StatusTerminated, primitives.ReasonCancelled},
		{"guest killed", killGuest, primitives.ErrUnavailable, primitives.StatusLost, primitives.ReasonLost},
		{"too old", outlive, primitives.ErrUnavailable, primitives.StatusExited, primitives.ReasonLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			cfg := config(t)
			box := open(t, cfg)
			p, err := box.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := box.Watch(t.Context(), ".", primitives.WatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.end(t, s, box)
			var ended error
			for _, err := range watch {
				ended = err
			}
			expectError(t, "the watch", ended, c.want)
			if status, err := p.Wait(t.Context()); err == nil && status.Reason != c.reason {
				t.Errorf("the command ends with %+v, want that it is %s", status, c.reason)
			}
			_ = p.Close() // its end cannot be confirmed
			_, err = box.Stat(t.Context(), ".")
			expectError(t, "Stat", err, c.want)
			state, err := box.Poll(t.Context())
			if err != nil || state.Status != c.status {
				t.Errorf("Poll: %+v, %v, want %s", state, err, c.status)
			}
			if c.status == primitives.StatusLost {
				expectAnotherGuest(t, cfg, box)
				return
			}
			_, err = modal.Attach(t.Context(), cfg, box.ID())
			expectError(t, "Attach", err, c.want)
		})
	}
}

// expectAnotherGuest attaches to a live sandbox that has lost its guest.
func expectAnotherGuest(t *testing.T, cfg modal.Config, box *guest.Sandbox) {
	t.Helper()
	again, err := modal.Attach(t.Context(), cfg, box.ID())
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	if got := run(t, again, "echo on"); got != "on\n" {
		t.Errorf("the sandbox says %q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// outlive makes a sandbox reach its maximum age. A short Timeout would be flaky: a busy machine
// might not create the sandbox in time.
func outlive(t *testing.T, s *testmodal.Server, box *guest.Sandbox) {
	t.Helper()
	if err := s.Outlive(box.ID()); err != nil {
		t.Fatal(err)
	}
}

func terminateElsewhere(t *testing.T, _ *testmodal.Server, box *guest.Sandbox) {
	t.Helper()
	mc, err := sdk.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer mc.Close()
	other, err := mc.Sandboxes.FromID(t.Context(), box.ID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Terminate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := other.Detach(); err != nil {
		t.Fatal(err)
	}
}

func killGuest(t *testing.T, _ *testmodal.Server, box *guest.Sandbox) {
	t.Helper()
	if err := signalGuests(t.Context(), box.ID(), "KILL"); err != nil {
		t.Fatal(err)
	}
}

func TestAShortCutOfTheNetworkIsNotNoticed(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	p, err := box.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "read x; echo got $x"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(stdinWrite, codes.Unavailable, 2)
	s.DropStreams()
	if _, err := p.Stdin().Write([]byte("it\n")); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 0 {
		t.Errorf("the command ends with %+v, %v", status, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if got := run(t, box, "echo on"); got != "on\n" {
		t.Errorf("the sandbox says %q", got)
	}
}

func TestATokenOfTheSandboxThatHasExpiredIsRenewed(t *testing.T) {
	s := newServer(t)
	s.SetTokenLife(29 * time.Second) // short enough that the SDK renews it
	box := open(t, config(t))
	made := calls(s, func() {
		s.ExpireTokens() // only now: a deferred write of New would also renew the token
		if got := run(t, box, "echo on"); got != "on\n" {
			t.Errorf("the sandbox says %q", got)
		}
	})
	if made["SandboxGetCommandRouterAccess"] == 0 {
		t.Errorf("no new token was asked for: %v", made)
	}
}

func TestACutNetworkEndsPendingOperations(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := box.Exec(ctx, primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := box.Watch(ctx, ".", primitives.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Before(func(string) error { return status.Error(codes.Unavailable, "the network is cut") })
	s.DropStreams()
	err = box.WriteFile(ctx, "f", strings.NewReader("x"), primitives.WriteOptions{})
	expectError(t, "WriteFile", err, primitives.ErrUnavailable)
	for _, err := range watch {
		expectError(t, "the watch", err, primitives.ErrUnavailable)
	}
	if status, err := p.Wait(ctx); err == nil && status.Reason != primitives.ReasonLost {
		t.Errorf("the command ends with %+v, want that it is lost", status)
	}
	_ = p.Close()
	if state, err := box.Poll(ctx); err != nil || state.Status != primitives.StatusLost {
		t.Errorf("Poll: %+v, %v, want lost", state, err)
	}
	s.Before(nil)
	again, err := modal.Attach(ctx, config(t), box.ID())
	if err != nil {
		t.Fatalf("Attach when the network works again: %v", err)
	}
	if got := run(t, again, "echo on"); got != "on\n" {
		t.Errorf("the sandbox says %q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestAGuestThatDoesNotAnswerIsLost(t *testing.T) {
	newServer(t)
	cfg := modal.WithKeepAlive(config(t), 5*time.Second)
	box := open(t, cfg)
	p, err := box.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := signalGuests(t.Context(), box.ID(), "STOP"); err != nil {
		t.Fatal(err)
	}
	_, err = box.Stat(t.Context(), ".")
	expectError(t, "Stat", err, primitives.ErrUnavailable, "attach")
	if status, err := p.Wait(t.Context()); err == nil && status.Reason != primitives.ReasonLost {
		t.Errorf("the command ends with %+v, want that it is lost", status)
	}
	_ = p.Close()
	if state, err := box.Poll(t.Context()); err != nil || state.Status != primitives.StatusLost {
		t.Errorf("Poll: %+v, %v, want lost", state, err)
	}
}

func TestACallThatNeverReturnsDelaysNoOther(t *testing.T) {
	s := newServer(t)
	cfg := modal.WithKeepAlive(config(t), 5*time.Second)
	box, err := modal.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	never := make(chan struct{})
	s.Before(func(method string) error {
		if method == stdinWrite {
			<-never
		}
		return nil
	})
	_, err = box.Stat(t.Context(), ".")
	expectError(t, "Stat", err, primitives.ErrUnavailable, "attach")
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	s.Before(nil)
	close(never)
	if err := cfg.Remove(t.Context(), box.ID()); err != nil {
		t.Error(err)
	}
}
