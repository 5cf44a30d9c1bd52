package hostgit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// git runs git in a folder of the test.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Of a large repository only the last commits of the current branch are copied, and git works
// with them.
func TestALargeHistoryIsCut(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	var stream strings.Builder
	for i := range 4 * RecentCommits {
		fmt.Fprintf(&stream, "commit refs/heads/main\nmark :%d\ncommitter a <a@example.com> %d +0000\ndata 1\n%d", i+1, i, i%10)
		if i > 0 {
			fmt.Fprintf(&stream, "\nfrom :%d", i)
		}
		if i%10 == 9 {
			fmt.Fprintf(&stream, "\nmerge :%d", i-2)
		}
		fmt.Fprintf(&stream, "\nM 100644 inline f\ndata 3\n%03d\n", i)
	}
	load := exec.CommandContext(t.Context(), "git", "fast-import", "--quiet")
	load.Dir, load.Stdin = dir, strings.NewReader(stream.String())
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	git(t, dir, "reset", "-q", "--hard")
	git(t, dir, "tag", "old", "main~70")
	clone := filepath.Join(t.TempDir(), "clone")
	git(t, dir, "clone", "-q", fmt.Sprintf("--depth=%d", RecentCommits), "file://"+dir, clone)
	for most, want := range map[int64]string{0: git(t, clone, "rev-list", "HEAD"), 1 << 30: git(t, dir, "rev-list", "HEAD")} {
		to := t.TempDir()
		recent, err := CopyRepository(t.Context(), dir, to, most, nil)
		if err != nil || recent != (most == 0) {
			t.Fatalf("with a limit of %d: recent %v, error %v", most, recent, err)
		}
		if got := git(t, to, "rev-list", "HEAD"); got != want {
			t.Errorf("with a limit of %d there are the commits\n%s\nwant\n%s", most, got, want)
		}
		git(t, to, "fsck", "--full")
		if err := os.WriteFile(filepath.Join(to, "f"), []byte("199"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := git(t, to, "status", "--porcelain"); got != "" {
			t.Errorf("with a limit of %d: %s", most, got)
		}
	}
}
