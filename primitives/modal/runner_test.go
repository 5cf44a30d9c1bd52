package modal_test

import (
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// publishAsRunner keeps a folder with this program in it as the image that holds the
// runner, and returns the image's ID.
func publishAsRunner(t *testing.T, cfg modal.Config, program string) string {
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
	image, err := box.SnapshotDirectory(t.Context(), "/tmp/forged", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Publish(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	return image.ImageID
}

// expectUpload makes a sandbox that has to upload the runner.
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

func TestARunnerThatCannotBeRunIsReplaced(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	image := publishAsRunner(t, cfg, "this is no program")
	expectUpload(t, s, cfg)
	await(t, func() bool { return runnerImage(t, cfg) != image })
}

func TestTheRunnerIsKeptBeforeAnybodyCanChangeIt(t *testing.T) {
	s := newServer(t)
	s.Before(func(method string) error {
		if method == "TaskSnapshotDirectory" {
			<-time.After(200 * time.Millisecond) // New has time to return, if it does not wait
		}
		return nil
	})
	cfg := config(t)
	box := open(t, cfg)
	if s.Calls("ImagePublish") != 1 {
		t.Errorf("New has returned, and the runner is not kept: %v", s.CallCounts())
	}
	snapshot, err := box.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Where somebody may have changed the programs that the runner is uploaded with it
	// is not kept.
	if err := modal.RemoveSnapshot(t.Context(), cfg, runnerImage(t, cfg)); err != nil {
		t.Fatal(err)
	}
	cfg.Image = snapshot
	expectUpload(t, s, cfg)
	if s.Calls("ImagePublish") != 1 {
		t.Error("the runner of a sandbox that is a copy of another is kept")
	}
}

func TestARunnerWhoseImageIsGoneIsReplaced(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	first := open(t, cfg)
	await(t, func() bool { return s.Calls("ImagePublish") == 1 })
	if err := modal.RemoveSnapshot(t.Context(), cfg, runnerImage(t, cfg)); err != nil {
		t.Fatal(err)
	}
	expectUpload(t, s, cfg)
	if got := run(t, first, "echo on"); got != "on\n" {
		t.Errorf("the first sandbox says %q", got)
	}
}

// runnerImage is the ID of the image that holds the runner now.
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

func TestASandboxThatNobodyIsConnectedToEndsByItself(t *testing.T) {
	newServer(t)
	cfg := config(t)
	cfg.IdleTimeoutSeconds = 5
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
		t.Errorf("while somebody is connected it is %+v, %v", state, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool {
		list, err := modal.List(t.Context(), modal.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 0
	})
	_, err = modal.Attach(t.Context(), cfg, box.ID())
	expectError(t, "Attach", err, primitives.ErrUnavailable)
}
