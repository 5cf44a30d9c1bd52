package modal_test

import (
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// ownerTag is the tag that identifies the owner of a sandbox.
const ownerTag = "agentenv-owner"

// retag changes the tags of a sandbox and returns the new ones.
func retag(t *testing.T, id string, change func(tags map[string]string)) map[string]string {
	t.Helper()
	mc, err := sdk.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer mc.Close()
	box, err := mc.Sandboxes.FromID(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := box.GetTags(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	change(tags)
	if err := box.SetTags(t.Context(), tags, nil); err != nil {
		t.Fatal(err)
	}
	return tags
}

// disown makes a dead process the owner of a sandbox.
func disown(t *testing.T, id string) {
	t.Helper()
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	retag(t, id, func(tags map[string]string) {
		parts := strings.Split(tags[ownerTag], ".")
		parts[2] = strconv.Itoa(ended.Process.Pid)
		tags[ownerTag] = strings.Join(parts, ".")
	})
}

// move makes a program of another machine the owner of a sandbox.
func move(t *testing.T, id string) {
	t.Helper()
	retag(t, id, func(tags map[string]string) { tags[ownerTag] = "another" + tags[ownerTag] })
}

func TestListReturnsAllSandboxes(t *testing.T) {
	newServer(t)
	if list, err := (modal.Config{}).List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("before anything was made: %v, %v", list, err)
	}
	cfg := config(t)
	cfg.Name, cfg.Keep, cfg.Session, cfg.Labels = "mine", true, "made for: a test", map[string]string{"team": "blue"}
	box := open(t, cfg)
	other := open(t, config(t))
	list, err := (modal.Config{}).List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	got := list[0]
	if got.ID != box.ID() || got.Name != "mine" || !got.Owned || !got.Kept || got.Status != primitives.StatusRunning ||
		got.Session != "made_for__a_test" || !strings.Contains(got.Owner, ":") || !strings.HasPrefix(got.Image, "im-") {
		t.Errorf("the first is %+v", got)
	}
	if life := got.Expires.Sub(got.Created); life < 50*time.Minute || life > 70*time.Minute {
		t.Errorf("it expires %v after it was made, want an hour", life)
	}
	if got.GuestVersion != guest.Version {
		t.Errorf("its guest has version %d, want %d", got.GuestVersion, guest.Version)
	}
	if list[1].ID != other.ID() || list[1].Kept {
		t.Errorf("the second is %+v", list[1])
	}
	tags := retag(t, box.ID(), func(map[string]string) {})
	if tags["team"] != "blue" {
		t.Errorf("the tags are %v", tags)
	}
	for key, value := range tags {
		if len(key) > 63 || len(value) > 63 {
			t.Errorf("the tag %s=%s is too long", key, value)
		}
	}
}

func TestGCEndsOnlyOrphans(t *testing.T) {
	newServer(t)
	alive, elsewhere, abandoned := open(t, config(t)), open(t, config(t)), open(t, config(t))
	cfg := config(t)
	cfg.Keep = true
	kept, unfinished := open(t, cfg), open(t, cfg)
	disown(t, unfinished.ID())
	retag(t, unfinished.ID(), func(tags map[string]string) { tags["agentenv-keep"] = "soon" })
	move(t, elsewhere.ID())
	disown(t, abandoned.ID())
	disown(t, kept.ID())

	garbage := func(opts primitives.GCOptions) string {
		t.Helper()
		found, err := (modal.Config{}).GC(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, f := range found {
			ids = append(ids, f.ID)
		}
		return strings.Join(ids, " ")
	}
	if got := garbage(primitives.GCOptions{}); got != unfinished.ID() {
		t.Errorf("within their grace it ends %q, want only %q, which was never complete", got, unfinished.ID())
	}
	if got := garbage(primitives.GCOptions{NoGrace: true, DryRun: true}); got != abandoned.ID() {
		t.Errorf("it would end %q, want %q", got, abandoned.ID())
	}
	if state, err := abandoned.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("what would be ended is %+v, %v", state, err)
	}
	if got := garbage(primitives.GCOptions{NoGrace: true}); got != abandoned.ID() {
		t.Errorf("it ends %q, want %q", got, abandoned.ID())
	}
	if state, err := abandoned.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("what was ended is %+v, %v", state, err)
	}
	for name, box := range map[string]*guest.Sandbox{"of a program that lives": alive, "of another machine": elsewhere, "that is kept": kept} {
		if state, err := box.Poll(t.Context()); err != nil || !state.Running() {
			t.Errorf("the sandbox %s is %+v, %v", name, state, err)
		}
	}
}

func TestWhoAttachesToAnAbandonedSandboxOwnsIt(t *testing.T) {
	newServer(t)
	cfg := config(t)
	box := open(t, cfg)
	disown(t, box.ID())
	again, err := modal.Attach(t.Context(), cfg, box.ID())
	if err != nil {
		t.Fatal(err)
	}
	found, err := (modal.Config{}).GC(t.Context(), primitives.GCOptions{NoGrace: true})
	if err != nil || len(found) != 0 {
		t.Errorf("GC ends %+v, %v", found, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestGCLeavesASandboxWhoseProgramDiedToThoseWhoAreAttached(t *testing.T) {
	newServer(t)
	cfg := config(t)
	box := open(t, cfg)
	other, err := modal.Attach(t.Context(), cfg, box.ID()) // while its owner is alive
	if err != nil {
		t.Fatal(err)
	}
	disown(t, box.ID())
	for _, opts := range []primitives.GCOptions{{NoGrace: true, DryRun: true}, {NoGrace: true}} {
		if found, err := (modal.Config{}).GC(t.Context(), opts); err != nil || len(found) != 0 {
			t.Errorf("with %+v GC ends %+v, %v, which is in use", opts, found, err)
		}
	}
	if got := run(t, other, "echo on"); got != "on\n" {
		t.Errorf("the sandbox says %q", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { // until the other guest has ended
		found, err := (modal.Config{}).GC(t.Context(), primitives.GCOptions{NoGrace: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 1
	})
}

func TestASandboxWithoutOurTagsIsNotFound(t *testing.T) {
	newServer(t)
	cfg := config(t)
	box := open(t, cfg)
	retag(t, box.ID(), func(tags map[string]string) { clear(tags) })
	_, err := modal.Attach(t.Context(), cfg, box.ID())
	expectError(t, "Attach", err, fs.ErrNotExist, "not made as a sandbox")
	expectNothingLeft(t)
}
