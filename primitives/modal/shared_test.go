package modal_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// lookUps are the calls that look up what a sandbox consists of.
var lookUps = []string{"ImageGetOrCreate", "ImageGetByTag", "EnvironmentGetOrCreate"}

func TestKnownImagesAreNotLookedUpAgain(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	for range 2 { // the first one uploads the runner, the second one finds it
		open(t, cfg)
	}
	made := calls(s, func() { open(t, cfg) })
	for _, method := range append(lookUps, "AuthTokenGet") {
		if made[method] != 0 {
			t.Errorf("%s is called %d times: %v", method, made[method], made)
		}
	}
	other := cfg
	other.Dockerfile = []string{"ENV OTHER=1"}
	made = calls(s, func() {
		if got := run(t, open(t, other), "echo $OTHER"); got != "1\n" {
			t.Errorf("the other image is not used: %q", got)
		}
	})
	if made["ImageGetOrCreate"] == 0 || made["ImageGetByTag"] != 0 {
		t.Errorf("another image with the same runner: %v", made)
	}
}

func TestAConnectionLivesAsLongAsItsLastUser(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	first, err := modal.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	second := open(t, cfg)
	if _, err := first.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 { // a second Close must not release the other's connection
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := modal.Look(t.Context(), cfg.Provider, first.ID()); err != nil {
		t.Error(err)
	}
	if state, err := second.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("the other one: %+v, %v", state, err)
	}
	if n := s.Calls("AuthTokenGet"); n != 1 {
		t.Errorf("there are %d connections", n)
	}
}

func TestOneTokenIsNotUsedForAnother(t *testing.T) {
	newServer(t)
	cfg := config(t)
	open(t, cfg)
	for name, change := range map[string]func(t *testing.T){
		"variable": func(t *testing.T) { t.Setenv("MODAL_TOKEN_SECRET", "as-wrong") },
		"profile in the file": func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "modal.toml")
			t.Setenv("MODAL_CONFIG_PATH", file)
			for _, variable := range []string{"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"} {
				t.Setenv(variable, "") // registers the restore of the old value
				_ = os.Unsetenv(variable)
			}
			content := "[default]\ntoken_id = \"ak-wrong\"\ntoken_secret = \"as-wrong\"\nactive = true\n"
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			change(t)
			if box, err := modal.New(t.Context(), cfg); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("a sandbox is made with another's token: %v, %v", box, err)
			}
		})
	}
}

func TestOneServerIsNotTakenForAnother(t *testing.T) {
	first := newServer(t)
	cfg := config(t)
	open(t, cfg)
	second := newServer(t)
	box := open(t, cfg)
	if first.Definition(box.ID()) != nil || second.Definition(box.ID()) == nil {
		t.Error("the sandbox is on the other server")
	}
}

func TestAnImageThatModalHasRemovedIsLookedUpAgain(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument} {
		t.Run(code.String(), func(t *testing.T) {
			s := newServer(t)
			cfg := config(t)
			open(t, cfg)
			s.Fail("SandboxCreateV2", code, 1)
			made := calls(s, func() { open(t, cfg) })
			if made["SandboxCreateV2"] != 2 || made["ImageGetOrCreate"] == 0 {
				t.Errorf("%v", made)
			}
			s.Fail("SandboxCreateV2", code, 2)
			made = calls(s, func() {
				if box, err := modal.New(t.Context(), cfg); err == nil {
					t.Errorf("%v is made", box.ID())
				}
			})
			if made["SandboxCreateV2"] != 2 {
				t.Errorf("it is not tried twice: %v", made)
			}
		})
	}
}

func TestSandboxesThatAreMadeAtOnceShareAConnection(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	open(t, cfg)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			box, err := modal.New(t.Context(), cfg)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := box.Terminate(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			if err := box.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := s.Calls("AuthTokenGet"); n != 1 {
		t.Errorf("there are %d connections", n)
	}
}

func TestARunnerThatChangesHasAnotherImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envrunner")
	var names []string
	old := time.Now().Add(-time.Hour)
	for i, content := range []string{"first", "other", "longer than that"} {
		if err := os.WriteFile(file, []byte(content), 0o700); err != nil { // a program
			t.Fatal(err)
		}
		at := old.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time the name is cached
			name, err := modal.RunnerImage(file)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
	}
	if names[0] != names[1] || names[2] != names[3] || names[1] == names[2] || names[3] == names[4] {
		t.Errorf("%q", names)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if name, err := modal.RunnerImage(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone is %q, %v", name, err)
	}
}
