package environment

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestASandboxIsFoundByItsName(t *testing.T) {
	box := sandbox(t)
	name := "n" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	made := create(t, Config{Sandbox: toKeep(box), Name: name})
	put(t, made, "mine", "1\n")
	byName := attach(t, name, box)
	if byName.ID() != made.ID() || changes(t, byName) != "created mine," {
		t.Errorf("attached to %s, want %s", byName.ID(), made.ID())
	}
	if _, err := Attach(t.Context(), Config{Sandbox: container(t)}, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name of another type: %v", err)
	}
	if err := byName.Close(); err != nil {
		t.Error(err)
	}
	if err := Remove(t.Context(), box, name); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{name, made.ID()} {
		_, err := Attach(t.Context(), Config{Sandbox: box}, gone)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no sandbox has this ID") || strings.Contains(err.Error(), "/") {
			t.Errorf("attach to %s, which is gone: %v", gone, err)
		}
		if err := Remove(t.Context(), box, gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove %s, which is gone: %v", gone, err)
		}
	}
}

// An ID comes before a name that looks like it.
func TestAnIDIsNoName(t *testing.T) {
	box := sandbox(t)
	first := create(t, Config{Sandbox: toKeep(box)})
	second := create(t, Config{Sandbox: toKeep(box), Name: first.ID()})
	if err := Remove(t.Context(), box, first.ID()); err != nil {
		t.Fatal(err)
	}
	if err := second.Healthy(t.Context()); err != nil {
		t.Errorf("the other sandbox: %v", err)
	}
	if err := Remove(t.Context(), box, second.ID()); err != nil {
		t.Error(err)
	}
}

func TestASandboxWithoutATypeSaysWhichThereAre(t *testing.T) {
	_, err := Attach(t.Context(), Config{}, "x")
	if !errors.Is(err, ErrConfig) || !strings.HasSuffix(err.Error(), "its type is empty; set it to one of docker, local, modal, ssh") {
		t.Errorf("error %v", err)
	}
}
