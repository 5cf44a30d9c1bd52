package hostgit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestTheOutputOfGitIsBounded(t *testing.T) {
	g := gitCommand{dir: t.TempDir()}
	if _, err := g.run(t.Context(), "init", "--quiet", "--template="); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "a file of the folder"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]error{5: primitives.ErrLimit, 100: nil} {
		g.most = most
		out, err := g.run(t.Context(), "ls-files", "--others")
		if !errors.Is(err, want) || (out != "") != (want == nil) {
			t.Errorf("of at most %d bytes: %q, %v", most, out, err)
		}
	}
}
