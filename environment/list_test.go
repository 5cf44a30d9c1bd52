package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/docker"
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
		if !errors.Is(err, fs.ErrNotExist) || err.Error() != `local: no sandbox "`+gone+`"; List shows those there are` {
			t.Errorf("attach to %s, which is gone: %v", gone, err)
		}
		if err := Remove(t.Context(), box, gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove %s, which is gone: %v", gone, err)
		}
	}
}

// All types return the same error for an unknown ID, whatever their backends return.
func TestAnUnknownIDIsNamedAlikeByAllTypes(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		for _, id := range []string{"0123456789ab", "sb-1234567890123456789012", "no id/at all\n"} {
			_, err := Attach(t.Context(), Config{Sandbox: box}, id)
			for call, err := range map[string]error{"Attach": err, "Remove": Remove(t.Context(), box, id)} {
				want := fmt.Sprintf("%s: no sandbox %q; List shows those there are", box.Type, id)
				if !errors.Is(err, fs.ErrNotExist) || err.Error() != want {
					t.Errorf("%s: %v, want %s", call, err, want)
				}
			}
		}
	})
	t.Run("an engine that is not there", func(t *testing.T) {
		box := withBlock(container(t), func(p *docker.Provider) { p.Host = "unix://" + filepath.Join(t.TempDir(), "nosuch.sock") })
		_, err := Attach(t.Context(), Config{Sandbox: box}, "0123456789ab")
		for call, err := range map[string]error{"Attach": err, "Remove": Remove(t.Context(), box, "0123456789ab")} {
			if err == nil || strings.Contains(err.Error(), "List shows") {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}

// An ID takes precedence over a name that equals it.
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
