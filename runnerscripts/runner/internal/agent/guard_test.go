package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestGuardKeepsFileToolsInTheWorkspace(t *testing.T) {
	s := session(t)
	ws, home, outside := s.Paths.Workspace, s.Paths.Home, t.TempDir()
	mkdir(t, filepath.Join(ws, "dir"))
	mkdir(t, filepath.Join(home, "skills"))
	link(t, outside, filepath.Join(ws, "out"))
	link(t, filepath.Join(outside, "new"), filepath.Join(ws, "dangling"))
	link(t, "../..", filepath.Join(ws, "dir", "up"))
	link(t, "dir", filepath.Join(ws, "in"))
	link(t, "loop", filepath.Join(ws, "loop"))
	link(t, ws, filepath.Join(outside, "back"))
	link(t, outside, filepath.Join(home, "skills", "out"))
	g := agent.NewGuard(s, "skills")
	for _, tt := range []struct {
		name    string
		kind    rs.ToolKind
		path    string
		refused bool
	}{
		{"the workspace itself", rs.ToolSearch, ws, false},
		{"a file", rs.ToolEdit, ws + "/a", false},
		{"a new file in new folders", rs.ToolEdit, ws + "/x/y/z", false},
		{"a relative path", rs.ToolEdit, "dir/a", false},
		{"a relative path out", rs.ToolEdit, "../a", true},
		{"a name with dots", rs.ToolEdit, ws + "/..a", false},
		{"a folder with the same beginning", rs.ToolEdit, ws + "2/a", true},
		{"another folder", rs.ToolRead, outside + "/a", true},
		{"deleting there", rs.ToolDelete, outside + "/a", true},
		{"moving there", rs.ToolMove, outside + "/a", true},
		{"searching there", rs.ToolSearch, outside, true},
		{"a command there", rs.ToolExecute, outside, false},
		{"dots out", rs.ToolRead, ws + "/../a", true},
		{"dots that return", rs.ToolRead, ws + "/dir/../a", false},
		{"a link out", rs.ToolRead, ws + "/out", true},
		{"below a link out", rs.ToolEdit, ws + "/out/new/file", true},
		{"a link to a file that is not there yet", rs.ToolEdit, ws + "/dangling", true},
		{"a relative link out", rs.ToolRead, ws + "/dir/up/a", true},
		{"a link inside", rs.ToolEdit, ws + "/in/a", false},
		{"dots after a link out", rs.ToolEdit, ws + "/out/../a", true},
		{"dots that hide a link", rs.ToolEdit, outside + "/back/a/../../b", true},
		{"a link back in", rs.ToolEdit, outside + "/back/a", false},
		{"a loop of links", rs.ToolRead, ws + "/loop/a", true},
		{"the home", rs.ToolRead, home + "/secret", true},
		{"reading what may be read", rs.ToolRead, home + "/skills/s/text", false},
		{"changing what may be read", rs.ToolEdit, home + "/skills/s/text", true},
		{"a link out of what may be read", rs.ToolRead, home + "/skills/out/a", true},
		{"the home in the words of a shell", rs.ToolRead, "~/secret", true},
		{"the home itself", rs.ToolSearch, "~", true},
		{"a name that begins like it", rs.ToolEdit, "~a", false},
		{"no path that the system has", rs.ToolRead, ws + "/a\x00b", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			call := rs.ToolCall{Kind: tt.kind, Locations: []rs.Location{{Path: ws + "/a"}, {Path: tt.path}}}
			reason, refused := g.Refuses(call)
			if refused != tt.refused || refused != strings.Contains(reason, tt.path) {
				t.Errorf("%q: %v, %q", tt.path, refused, reason)
			}
			call = rs.ToolCall{Kind: tt.kind, Content: []rs.ToolCallContent{{Type: "diff", Path: tt.path}}}
			if _, refused := g.Refuses(call); refused != tt.refused {
				t.Errorf("as a change: %v", refused)
			}
		})
	}
}

func TestGuardIsOffWhereTheCallerAllowsIt(t *testing.T) {
	s := session(t)
	s.Agent.AllowOutside = true
	call := rs.ToolCall{Kind: rs.ToolEdit, Locations: []rs.Location{{Path: "/etc/passwd"}}}
	if reason, refused := agent.NewGuard(s).Refuses(call); refused {
		t.Error(reason)
	}
}

func TestGuardOfAWorkspaceBehindALink(t *testing.T) {
	s := session(t)
	folder := s.Paths.Workspace
	s.Paths.Workspace = filepath.Join(t.TempDir(), "link")
	link(t, folder, s.Paths.Workspace)
	g := agent.NewGuard(s)
	for _, dir := range []string{folder, s.Paths.Workspace} {
		if reason, refused := g.Refuses(rs.ToolCall{Kind: rs.ToolEdit, Locations: []rs.Location{{Path: dir + "/a"}}}); refused {
			t.Error(reason)
		}
	}
}
