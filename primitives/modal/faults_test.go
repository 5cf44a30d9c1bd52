package modal_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// expectError checks what an error is and says.
func expectError(t *testing.T, what string, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
		return
	}
	var where *primitives.Error
	if !errors.As(err, &where) || where.Backend != "modal" {
		t.Errorf("%s: %v does not say that it is of modal", what, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
}

// expectNothingLeft checks that no sandbox lives.
func expectNothingLeft(t *testing.T) {
	t.Helper()
	list, err := modal.List(context.WithoutCancel(t.Context()), modal.Config{})
	if err != nil || len(list) > 0 {
		t.Errorf("there are sandboxes %+v, %v", list, err)
	}
}

func TestWithoutATokenNothingIsCalled(t *testing.T) {
	s := newServer(t)
	t.Setenv("MODAL_TOKEN_ID", "")
	t.Setenv("MODAL_TOKEN_SECRET", "")
	_, err := modal.New(t.Context(), config(t))
	expectError(t, "New", err, fs.ErrPermission, "modal token new", "MODAL_TOKEN_ID")
	_, err = modal.List(t.Context(), modal.Config{})
	expectError(t, "List", err, fs.ErrPermission, "modal token new")
	_, err = modal.Attach(t.Context(), modal.Config{}, "sb-0123456789012345678901234")
	expectError(t, "Attach", err, fs.ErrPermission, "modal token new")
	if made := s.CallCounts(); len(made) > 0 {
		t.Errorf("there are calls: %v", made)
	}
}

func TestAWrongTokenIsRefused(t *testing.T) {
	newServer(t)
	t.Setenv("MODAL_TOKEN_SECRET", "as-wrong")
	_, err := modal.New(t.Context(), config(t))
	expectError(t, "New", err, fs.ErrPermission, "modal token new")
}

func TestTheTokenOfAProfileIsUsed(t *testing.T) {
	s := newServer(t)
	id, secret := s.Credentials()
	file := filepath.Join(t.TempDir(), "modal.toml")
	text := "[other]\ntoken_id = \"ak-no\"\ntoken_secret = \"as-no\"\nactive = true\n" +
		"[mine]\ntoken_id = \"" + id + "\"\ntoken_secret = \"" + secret + "\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MODAL_CONFIG_PATH", file)
	t.Setenv("MODAL_TOKEN_ID", "")
	t.Setenv("MODAL_TOKEN_SECRET", "")
	if _, err := modal.List(t.Context(), modal.Config{Profile: "mine"}); err != nil {
		t.Errorf("with the right profile: %v", err)
	}
	_, err := modal.List(t.Context(), modal.Config{})
	expectError(t, "List with the active profile, which has another token", err, fs.ErrPermission)
	_, err = modal.List(t.Context(), modal.Config{Profile: "none"})
	expectError(t, "List with a profile that is not there", err, fs.ErrPermission)
	if _, set := os.LookupEnv("MODAL_PROFILE"); set {
		t.Error("the environment of this program is changed")
	}
}

func TestAServerThatDoesNotAnswerIsUnavailable(t *testing.T) {
	newServer(t)
	t.Setenv("MODAL_SERVER_URL", "http://127.0.0.1:1")
	_, err := modal.New(t.Context(), config(t))
	expectError(t, "New", err, primitives.ErrUnavailable, "MODAL_SERVER_URL")
}

func TestWhatTheConfigurationNamesMustExist(t *testing.T) {
	newServer(t)
	for _, c := range []struct {
		field  string
		change func(*modal.Config)
		want   error
	}{
		{"app", func(c *modal.Config) { c.App = "none" }, fs.ErrNotExist},
		{"image", func(c *modal.Config) { c.Image = "im-0123456789" }, fs.ErrNotExist},
		{"secrets", func(c *modal.Config) { c.Secrets = []string{"none"} }, fs.ErrNotExist},
		{"image", func(c *modal.Config) { c.Dockerfile = []string{"RUN echo broken >&2; false"} }, fs.ErrInvalid},
	} {
		t.Run(c.field, func(t *testing.T) {
			cfg := config(t)
			c.change(&cfg)
			_, err := modal.New(t.Context(), cfg)
			expectError(t, "New", err, c.want, c.field+": ")
			expectNothingLeft(t)
		})
	}
}

func TestANameIsTakenOnce(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.Name = "mine"
	first := open(t, cfg)
	_, err := modal.New(t.Context(), cfg)
	expectError(t, "New", err, fs.ErrExist, "name: ")
	again, err := modal.Attach(t.Context(), cfg, "mine")
	if err != nil {
		t.Fatalf("Attach by the name: %v", err)
	}
	if again.ID() != first.ID() {
		t.Errorf("the name leads to %s, want %s", again.ID(), first.ID())
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestACallThatIsPutOffIsMadeAgain(t *testing.T) {
	s := newServer(t)
	if err := s.Throttle("SandboxCreateV2", 10*time.Millisecond, 5); err != nil {
		t.Fatal(err)
	}
	made := calls(s, func() { open(t, config(t)) })
	if made["SandboxCreateV2"] != 6 {
		t.Errorf("the call was made %d times, want 6", made["SandboxCreateV2"])
	}
}

func TestWithoutRoomANewSandboxIsUnavailable(t *testing.T) {
	s := newServer(t)
	s.Fail("SandboxCreateV2", codes.ResourceExhausted, 100)
	_, err := modal.New(t.Context(), config(t))
	expectError(t, "New", err, primitives.ErrUnavailable)
	expectNothingLeft(t)
}

func TestWhateverFailsInNewLeavesNothing(t *testing.T) {
	for _, method := range []string{
		"AppGetOrCreate", "ImageGetOrCreate", "SandboxCreateV2", "TaskExecStart", "TaskExecStdinWrite", "TaskExecStdinWriteStream", "TaskExecWait",
	} {
		t.Run(method, func(t *testing.T) {
			s := newServer(t) // which has no runner yet
			s.Before(func(called string) error {
				if called == method {
					return status.Error(codes.ResourceExhausted, "it was made to fail by the test")
				}
				return nil
			})
			_, err := modal.New(t.Context(), config(t))
			s.Before(nil)
			expectError(t, "New", err, primitives.ErrUnavailable)
			expectNothingLeft(t)
		})
	}
}

func TestACancelledNewLeavesNothing(t *testing.T) {
	s := newServer(t)
	for _, method := range []string{"ImageGetOrCreate", "SandboxCreateV2", "TaskExecStart", "TaskExecStdinWrite"} {
		t.Run(method, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s.Before(func(called string) error {
				if called == method {
					cancel()
				}
				return nil
			})
			_, err := modal.New(ctx, config(t))
			s.Before(nil)
			expectError(t, "New", err, context.Canceled)
			expectNothingLeft(t)
		})
	}
}

// endings are the ways in which a sandbox ends behind the back of its handle.
func TestASandboxThatEndsBehindItsHandleSaysHow(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*modal.Config)
		end    func(t *testing.T, box *modal.Sandbox)
		want   error
		status primitives.Status
	}{
		{"terminated elsewhere", func(*modal.Config) {}, terminateElsewhere, primitives.ErrTerminated, primitives.StatusTerminated},
		{"guest killed", func(*modal.Config) {}, killGuest, primitives.ErrUnavailable, primitives.StatusLost},
		{"too old", func(c *modal.Config) { c.TimeoutSeconds = 3 }, nil, primitives.ErrUnavailable, primitives.StatusExited},
	} {
		t.Run(c.name, func(t *testing.T) {
			newServer(t)
			cfg := config(t)
			c.change(&cfg)
			box := open(t, cfg)
			p, err := box.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := box.Watch(t.Context(), ".", primitives.WatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if c.end != nil {
				c.end(t, box)
			}
			var ended error
			for _, err := range watch {
				ended = err
			}
			expectError(t, "the watch", ended, c.want)
			if status, err := p.Wait(t.Context()); err == nil && status.Reason != primitives.ReasonLost {
				t.Errorf("the command ends with %+v, want that it is lost", status)
			}
			_ = p.Close() // nobody can say that it has ended
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

// expectAnotherGuest attaches to a sandbox that lives and has lost its guest.
func expectAnotherGuest(t *testing.T, cfg modal.Config, box *modal.Sandbox) {
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

func terminateElsewhere(t *testing.T, box *modal.Sandbox) {
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

func killGuest(t *testing.T, box *modal.Sandbox) {
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
	s.SetTokenLife(time.Second)
	box := open(t, config(t))
	s.ExpireTokens()
	made := calls(s, func() {
		if got := run(t, box, "echo on"); got != "on\n" {
			t.Errorf("the sandbox says %q", got)
		}
	})
	if made["SandboxGetCommandRouterAccess"] == 0 {
		t.Errorf("no new token was asked for: %v", made)
	}
}

func TestANetworkThatIsCutEndsWhatIsUnderWay(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
	cfg := modal.WithKeepAlive(config(t), time.Second)
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

func TestACallThatNeverReturnsHoldsNobodyUp(t *testing.T) {
	s := newServer(t)
	cfg := modal.WithKeepAlive(config(t), time.Second)
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
	if err := modal.Remove(t.Context(), cfg, box.ID()); err != nil {
		t.Error(err)
	}
}
