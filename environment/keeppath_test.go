package environment

import "testing"

// The sandboxes of a pool on this machine are at paths of their own.
func TestAPoolGivesASessionThePathOfItsWorkspace(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	first := create(t, Config{Sandbox: box})
	at := first.Primitive().Paths().Workspace
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	p := pool(t, Config{Sandbox: box, Pool: PoolConfig{Size: 1}, Agent: Agent{Name: "script"}})
	next := createFrom(t, p, Config{Session: SessionState{KeepPath: at}})
	if got := next.Primitive().Paths().Workspace; got != at {
		t.Errorf("the session goes on in %s, was in %s", got, at)
	}
	beside := createFrom(t, p, Config{Session: SessionState{KeepPath: at}})
	if got := beside.Primitive().Paths().Workspace; got == at {
		t.Errorf("two sandboxes work in %s", got)
	}
}
