package environment

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
)

func TestRemoveEndsAContainerThatDied(t *testing.T) {
	box := container(t)
	id, _ := kept(t, Config{Sandbox: box})
	if err := testdocker.Engine(t).ContainerKill(t.Context(), id, "KILL"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), box, id); err != nil {
		t.Error(err)
	}
	if err := Remove(t.Context(), box, id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed again: %v", err)
	}
}
