package modal_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// Programs in the workspace store its path, so it is the same in all sandboxes, in copies and in those of a
// snapshot, and belongs to the sandbox's user.
func TestTheWorkspaceIsAtOnePathInAllSandboxes(t *testing.T) {
	startServer(t)
	for name, c := range map[string]struct {
		change func(*modal.Config)
		want   string
	}{
		"root":   {func(*modal.Config) {}, "/workspace 0:0 755"},
		"a user": {func(c *modal.Config) { c.User = "4242:4242" }, "/workspace 4242:4242 755"},
		"a path": {func(c *modal.Config) { c.WorkspacePath = "/src/app" }, "/src/app 0:0 755"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			c.change(&cfg)
			s := open(t, cfg)
			look := func(s primitives.EnvironmentPrimitive) string {
				t.Helper()
				res, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", `echo "$(pwd) $(stat -c '%u:%g %a' .)"; touch f`}}, primitives.RunOptions{})
				if err != nil || res.Status.Code != 0 {
					t.Fatalf("%+v, %v: %s", res.Status, err, res.Stderr)
				}
				return strings.TrimSpace(string(res.Stdout))
			}
			if got := look(s); got != c.want {
				t.Errorf("the workspace is %s, want %s", got, c.want)
			}
			id, err := primitives.Snapshot(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Image, cfg.WorkspacePath = id, ""
			if got := look(open(t, cfg)); got != c.want {
				t.Errorf("the workspace of the snapshot is %s, want %s", got, c.want)
			}
			cfg.WorkspacePath = "/elsewhere"
			_, err = modal.New(t.Context(), cfg)
			if wrong, ok := errors.AsType[*primitives.SettingError](err); !ok || wrong.Setting != "workspace_path" {
				t.Errorf("another path than that of the snapshot: %v", err)
			}
		})
	}
}
