package local_test

import (
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/local"
)

func TestListShowsSandboxesUntilTheyAreTerminated(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	var ids []string
	var last *local.Sandbox
	for range 2 {
		s := newSandbox(t, cfg)
		ids, last = append(ids, s.ID()), s
	}
	list, err := local.Provider{Root: cfg.Root}.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, i.ID)
		if !i.Owned || i.Created.IsZero() {
			t.Errorf("%+v is not described", i)
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("List = %v, want %v", got, ids)
	}
	if _, err := last.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list, err = (local.Provider{Root: cfg.Root}).List(t.Context()); err != nil || len(list) != 1 || list[0].ID != ids[0] {
		t.Errorf("after Terminate: %v, %v", list, err)
	}
}

func TestListOfAFolderThatIsMissingIsEmpty(t *testing.T) {
	list, err := local.Provider{Root: t.TempDir() + "/none"}.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
}
