package runnerscripts_test

import (
	"errors"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestABadProfileIsRefusedByTheFieldThatIsWrong(t *testing.T) {
	skill := func(s rs.Skill) rs.Profile {
		if s.Description == "" {
			s.Description = "d"
		}
		if s.Content == "" {
			s.Content = "c"
		}
		return rs.Profile{Skills: []rs.Skill{s}}
	}
	server := func(m rs.MCPServer) rs.Profile {
		m.Name = "m"
		return rs.Profile{MCPServers: []rs.MCPServer{m}}
	}
	for _, c := range []struct {
		name, says string
		profile    rs.Profile
	}{
		{"a budget below zero", "profile.budget_usd", rs.Profile{BudgetUSD: -1}},
		{"turns below zero", "profile.max_turns", rs.Profile{MaxTurns: -1}},
		{"a rule without a text", "profile.rules[0].content", rs.Profile{Rules: []rs.Rule{{Name: "a"}}}},
		{"a rule without a name", `profile.rules[0] a name`, rs.Profile{Rules: []rs.Rule{{Content: "x"}}}},
		{"two of one name", `profile.rules[1]: there are two of the name "a"`, rs.Profile{Rules: []rs.Rule{{Name: "a", Content: "x"}, {Name: "a", Content: "y"}}}},
		{"a name that is a path", `"../a"`, skill(rs.Skill{Name: "../a"})},
		{"a file outside its skill", `profile.skills[0].files[0].path`, skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "../../x"}}})},
		{"an absolute file", `"/etc/passwd"`, skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "/etc/passwd"}}})},
		{"a file twice", `"x" stands twice`, skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "x"}, {Path: "x"}}})},
		{"a file that is a folder, too", `"x" is a file, too`, skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "x/a/b"}, {Path: "x"}}})},
		{"a folder that is a file, too", `"x/a" is a file, too`, skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "x/a"}, {Path: "x/a/b"}}})},
		{"a key of frontmatter that is none", `profile.skills[0].frontmatter: "a: b" cannot be a key`, skill(rs.Skill{Name: "s", Frontmatter: map[string]any{"a: b": 1}})},
		{"a second SKILL.md", "profile.skills[0].content", skill(rs.Skill{Name: "s", Files: []rs.WorkspaceFile{{Path: "SKILL.md"}}})},
		{"frontmatter that is a field", "profile.skills[0].name", skill(rs.Skill{Name: "s", Frontmatter: map[string]any{"name": "t"}})},
		{"a hook without a command", "profile.hooks[0].command", rs.Profile{Hooks: []rs.Hook{{Event: "Stop"}}}},
		{"a server without anything", "profile.mcp_servers[0] a command or a url", server(rs.MCPServer{})},
		{"a server with both", "not both", server(rs.MCPServer{Command: []string{"x"}, URL: "http://x"})},
		{"a URL of another kind", "profile.mcp_servers[0].url", server(rs.MCPServer{URL: "ftp://x"})},
		{"headers of a command", "leave headers out", server(rs.MCPServer{Command: []string{"x"}, Headers: map[string]string{"A": "b"}})},
		{"a plugin of nothing", "profile.plugins[0]", rs.Profile{Plugins: []rs.Plugin{{Name: "p"}}}},
		{"a workspace file outside", "profile.files[0].path", rs.Profile{Files: []rs.WorkspaceFile{{Path: "a/../../b"}}}},
		{"text and content", "not both", rs.Profile{Files: []rs.WorkspaceFile{{Path: "a", Text: "x", Content: []byte("y")}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.profile.Check()
			failure, ok := errors.AsType[*rs.ScriptFailure](err)
			if !ok || failure.Code != rs.FailInvalidRequest || !strings.Contains(failure.Message, c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheURLOfAServerIsNotRepeated(t *testing.T) {
	err := rs.Profile{MCPServers: []rs.MCPServer{{Name: "m", URL: "ftp://host/secret-key"}}}.Check()
	if err == nil || strings.Contains(err.Error(), "secret-key") {
		t.Errorf("%v", err)
	}
}
