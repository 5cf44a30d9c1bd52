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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// expectError checks that err wraps want, comes from this backend, and contains words.
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

// expectNothingLeft checks that no sandbox is alive.
func expectNothingLeft(t *testing.T) {
	t.Helper()
	list, err := (modal.Config{}).List(context.WithoutCancel(t.Context()))
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
	_, err = (modal.Config{}).List(t.Context())
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
	if _, err := (modal.Config{Provider: modal.Provider{Profile: "mine"}}).List(t.Context()); err != nil {
		t.Errorf("with the right profile: %v", err)
	}
	_, err := (modal.Config{}).List(t.Context())
	expectError(t, "List with the active profile, which has another token", err, fs.ErrPermission)
	_, err = (modal.Config{Provider: modal.Provider{Profile: "none"}}).List(t.Context())
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
	open(t, config(t)) // this also publishes the runner, in another sandbox
	if err := s.Throttle("SandboxCreateV2", 10*time.Millisecond, 5); err != nil {
		t.Fatal(err)
	}
	made := calls(s, func() { open(t, config(t)) })
	if made["SandboxCreateV2"] != 6 {
		t.Errorf("the call was made %d times, want 6", made["SandboxCreateV2"])
	}
}

func TestARetryAfterALostAnswerHasOneEffect(t *testing.T) {
	s := newServer(t)
	for _, method := range []string{"AppGetOrCreate", "ImageGetOrCreate", "SandboxCreateV2", "TaskExecStart", stdinWrite, "SandboxTagsSetV2"} {
		s.LoseAnswers(method, 2)
	}
	cfg := config(t)
	cfg.Name, cfg.Keep = "mine", true
	box := open(t, cfg)
	if list, err := (modal.Config{}).List(t.Context()); err != nil || len(list) != 1 || list[0].ID != box.ID() {
		t.Errorf("there are %+v, %v", list, err)
	}
	s.LoseAnswers(stdinWrite, 3)
	run(t, box, "echo once >>f")
	if got := run(t, box, "cat f"); got != "once\n" {
		t.Errorf("the command has written %q", got)
	}
	s.LoseAnswers("TaskSnapshotFilesystem", 1)
	if _, err := box.Snapshot(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAServerThatHangsDoesNotOutlastTheContext(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	cfg.Ports = []int{8080}
	box := open(t, cfg)
	run(t, box, "true") // the stream works
	hang := make(chan struct{})
	s.Before(func(string) error { <-hang; return nil })
	defer close(hang)
	defer s.Before(nil)
	id := box.ID()
	ended := map[string]chan error{} // the calls wait at the same time: some take over ten seconds
	for name, call := range map[string]func(ctx context.Context) error{
		"New":       func(ctx context.Context) error { _, err := modal.New(ctx, cfg); return err },
		"Attach":    func(ctx context.Context) error { _, err := modal.Attach(ctx, cfg, id); return err },
		"Look":      func(ctx context.Context) error { _, err := modal.Look(ctx, cfg.Provider, id); return err },
		"List":      func(ctx context.Context) error { _, err := cfg.List(ctx); return err },
		"GC":        func(ctx context.Context) error { _, err := cfg.GC(ctx, primitives.GCOptions{}); return err },
		"Remove":    func(ctx context.Context) error { return cfg.Remove(ctx, id) },
		"Examine":   func(ctx context.Context) error { return cfg.Examine(ctx, cfg.Spec)[0].Err },
		"Poll":      func(ctx context.Context) error { _, err := box.Poll(ctx); return err },
		"Stat":      func(ctx context.Context) error { _, err := box.Stat(ctx, "."); return err },
		"WriteFile": func(ctx context.Context) error { return box.WriteFile(ctx, "f", zeros{}, primitives.WriteOptions{}) },
		"Exec": func(ctx context.Context) error {
			_, err := box.Exec(ctx, primitives.Command{Args: []string{"true"}})
			return err
		},
		"Watch": func(ctx context.Context) error { _, err := box.Watch(ctx, ".", primitives.WatchOptions{}); return err },
	} {
		end := make(chan error, 1)
		ended[name] = end
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 300*time.Millisecond)
			defer cancel()
			end <- call(ctx)
		}()
	}
	limit := time.After(time.Minute)
	for name, end := range ended {
		select {
		case err := <-end:
			expectError(t, name, err, context.DeadlineExceeded)
		case <-limit:
			t.Fatalf("%s hangs", name)
		}
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
			s := newServer(t) // no runner is published yet
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
