package modal_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// publishAsRunner replaces the image that holds the runner by an image with program.
func publishAsRunner(t *testing.T, cfg modal.Config, program string) {
	t.Helper()
	name, err := modal.RunnerImage(cfg.Runner)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := sdk.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer mc.Close()
	box, err := mc.Sandboxes.FromID(t.Context(), open(t, cfg).ID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = box.Detach() }()
	if err := box.Filesystem.WriteText(t.Context(), program, "/tmp/forged/envrunner", nil); err != nil {
		t.Fatal(err)
	}
	if err := cfg.RemoveSnapshot(t.Context(), runnerImage(t, cfg)); err != nil {
		t.Fatal(err)
	}
	image, err := box.SnapshotDirectory(t.Context(), "/tmp/forged", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Publish(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
}

// expectUpload checks that a new sandbox uploads the runner.
func expectUpload(t *testing.T, s *testmodal.Server, cfg modal.Config) {
	t.Helper()
	made := calls(s, func() {
		if got := run(t, open(t, cfg), "echo on"); got != "on\n" {
			t.Errorf("the sandbox says %q", got)
		}
	})
	if made["TaskExecStdinWriteStream"] != 1 {
		t.Errorf("the runner is not uploaded: %v", made)
	}
}

func TestAPublishedRunnerThatCannotBeRunIsReplacedInTheSandbox(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	publishAsRunner(t, cfg, "this is no program")
	expectUpload(t, s, cfg)
}

func TestASandboxWhoseRunnerCannotBePublishedGetsAnUploadedOne(t *testing.T) {
	s := newServer(t)
	s.Fail("TaskSnapshotDirectory", codes.FailedPrecondition, 1)
	cfg := config(t)
	made := calls(s, func() {
		if got := run(t, open(t, cfg), "echo on"); got != "on\n" {
			t.Errorf("the sandbox says %q", got)
		}
	})
	if made["TaskExecStdinWriteStream"] != 2 || made["ImagePublish"] != 0 {
		t.Errorf("the runner is not uploaded where it could not be published: %v", made)
	}
	expectUpload(t, s, cfg)
	if made, n := s.Calls("SandboxCreateV2"), s.Calls("ImagePublish"); made != 3 || n != 0 {
		t.Errorf("the next sandbox tries it again: %d sandboxes, published %d times", made, n)
	}
	modal.Forget()
	open(t, cfg)
	if n := s.Calls("ImagePublish"); n != 1 {
		t.Errorf("after a while it is published %d times", n)
	}
}

func TestARunnerThatCannotBeMountedIsNotPublishedForEverySandbox(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	open(t, cfg)
	s.Fail("TaskMountDirectory", codes.FailedPrecondition, 2)
	made := calls(s, func() { open(t, cfg) })
	if made["TaskMountDirectory"] != 2 || made["ImagePublish"] != 1 {
		t.Errorf("the image is not replaced once: %v", made)
	}
	made = calls(s, func() { open(t, cfg) })
	if made["TaskMountDirectory"] != 0 || made["ImagePublish"] != 0 || made["TaskExecStdinWriteStream"] != 1 {
		t.Errorf("the next sandbox tries it again: %v", made)
	}
}

func TestTheNextSandboxDoesNotWaitForAPublicationThatHangs(t *testing.T) {
	s := newServer(t)
	cfg := modal.WithPublishTimeout(config(t), time.Second)
	end := make(chan struct{})
	s.Before(func(method string) error {
		if method != "ImageGetByTag" {
			return nil
		}
		<-end
		return status.Error(codes.Unavailable, "the test is over")
	})
	t.Cleanup(func() { close(end) })
	open(t, cfg)
	expectUpload(t, s, cfg)
	// It is 0 if the time was over before the first sandbox looked for it.
	if n := s.Calls("ImageGetByTag"); n > 1 {
		t.Errorf("the published runner is looked for %d times", n)
	}
}

func TestOfSandboxesThatAreMadeAtOnceOnePublishesTheRunner(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { open(t, cfg) })
	}
	all.Wait()
	if n, made := s.Calls("ImagePublish"), s.Calls("SandboxCreateV2"); n != 1 || made != 4 {
		t.Errorf("it is published %d times, in %d sandboxes", n, made)
	}
}

func TestARunnerWhoseImageIsGoneIsReplaced(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	first := open(t, cfg)
	if err := cfg.RemoveSnapshot(t.Context(), runnerImage(t, cfg)); err != nil {
		t.Fatal(err)
	}
	expectUpload(t, s, cfg)
	if got := run(t, first, "echo on"); got != "on\n" {
		t.Errorf("the first sandbox says %q", got)
	}
}

// runnerImage returns the ID of the image that now holds the runner.
func runnerImage(t *testing.T, cfg modal.Config) string {
	t.Helper()
	name, err := modal.RunnerImage(cfg.Runner)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := sdk.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer mc.Close()
	image, err := mc.Images.FromName(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return image.ImageID
}

func TestAnUnattendedSandboxEndsByItself(t *testing.T) {
	newServer(t)
	cfg := config(t)
	// This publishes the runner: the next sandbox does not wait for that without a command.
	first, err := modal.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = first.Terminate(t.Context())
	if err := errors.Join(err, first.Close()); err != nil {
		t.Fatal(err)
	}
	cfg.Grace = 5 * time.Second
	box, err := modal.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	other, err := modal.Attach(t.Context(), cfg, box.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Close(); err != nil {
		t.Fatal(err)
	}
	if state, err := other.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("while a client is connected the state is %+v, %v", state, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool {
		list, err := (modal.Config{}).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 0
	})
	_, err = modal.Attach(t.Context(), cfg, box.ID())
	expectError(t, "Attach", err, primitives.ErrUnavailable)
}
