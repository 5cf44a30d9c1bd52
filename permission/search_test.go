package permission

import (
	"strings"
	"testing"
)

// The tools that search name files in more than one field.
func TestSearchesAreJudgedByTheFilesThatTheyRead(t *testing.T) {
	p := newPolicy(t, Rules{Deny: []string{"Read(.env)", "Read(secret/**)", "Read(**/*.pem)"}})
	for want, calls := range map[Effect][]Call{
		Deny: {
			call("Grep", "", `{"pattern":"x","path":"secret/a"}`),
			call("Grep", "", `{"pattern":"x","path":"/work/ws/secret"}`),
			call("Grep", "", `{"pattern":"x","path":".env"}`),
			call("read_many_files", "", `{"paths":["a","secret/a"]}`),
			call("read_many_files", "", `{"include":[".env"]}`),
			call("glob", "", `{"pattern":"../ws/.env"}`),
			call("list_directory", "", `{"dir_path":"secret"}`),
		},
		Ask: {
			call("Grep", "", `{"pattern":"x"}`),
			call("Grep", "", `{"pattern":"x","glob":".e*"}`),
			call("Grep", "", `{"pattern":"x","glob":"*.go"}`), // in secret, too
			call("Glob", "", `{"pattern":"**/*.go"}`),
			call("Grep", "", `{"pattern":"x","path":"~"}`),
			call("Grep", "", `{"pattern":"x","glob":"*.{go,pem}"}`),
			call("grep", "", `{"pattern":"x","include":"*.pem"}`),
			call("search_file_content", "", `{"pattern":"x","include":"sec*/a"}`),
			call("Glob", "", `{"pattern":"secret/*"}`),
			call("Glob", "", `{"pattern":"*","path":"secret/.."}`),
			call("read_many_files", "", `{"include":["**/*"]}`),
			call("Grep", "", `{"pattern":"x","glob":7}`),
		},
		Allow: {
			call("Grep", "", `{"pattern":"x","glob":"*.go","path":"src"}`),
			call("Glob", "", `{"pattern":"src/**/*.go"}`),
			call("Glob", "", `{"pattern":"*.ts","path":"/work/ws/src"}`),
			call("read_many_files", "", `{"include":["src/*.go","README.md"]}`),
			call("Read", "", `{"file_path":"src/a","pattern":".env"}`),
		},
	} {
		for _, c := range calls {
			if d := p.Decide(c); d.Effect != want {
				t.Errorf("%s %s: %s, not %s (%s)", c.Name, c.Input, d.Effect, want, d.Reason)
			}
		}
	}
}

// ripgrep's --glob is no path: it matches in all folders, and can be negated. Some agents make several of one.
func TestTheFilterOfASearchIsNoPath(t *testing.T) {
	for _, c := range []struct {
		deny, input string
		want        Effect
	}{
		{"Read(secret/**)", `{"pattern":".","glob":"key.pem"}`, Ask},
		{"Read(secret/**)", `{"pattern":".","glob":"key.pem","path":"src"}`, Allow},
		{"Read(.env)", `{"pattern":".","glob":"!x"}`, Ask},
		{"Read(.env)", `{"pattern":".","glob":"*.js,.env"}`, Ask},
		{"Read(.env)", `{"pattern":".","glob":"*.{js,ts},.env"}`, Ask},
		{"Read(.env)", `{"pattern":".","glob":"*.js .env"}`, Ask},
		{"Read(.env)", `{"pattern":".","glob":"*.{js,ts}"}`, Allow},
		{"Read(.env)", `{"pattern":".","glob":"/.env"}`, Ask},
		{"Read(src/.env)", `{"pattern":".","glob":"src/.env","path":"src"}`, Ask}, // it counts from the workspace
		{"Read(.env)", `{"pattern":".","glob":"src/*.js"}`, Allow},
	} {
		p := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{c.deny}})
		if d := p.Decide(call("Grep", "", c.input)); d.Effect != c.want {
			t.Errorf("%s %s: %s, not %s (%s)", c.deny, c.input, d.Effect, c.want, d.Reason)
		}
	}
}

// Files of the workspace may be read, but none that alternatives of a pattern choose outside of it.
func TestAPatternThatMayLeadOutIsAsked(t *testing.T) {
	p := newPolicy(t, Rules{})
	for pattern, want := range map[string]Effect{
		"{/etc/passwd,a}": Ask, "{..,a}/../etc/*": Ask, ".{.,a}/x/*": Ask, ".{,a}./x/*": Ask, "{a,.}{.,b}/x/*": Ask,
		"src/{a,b}/*.{go,mod}": Allow, "{src,docs}/**": Allow, "*.ts{,x}": Allow, "{a/b,c/d}/*": Allow,
	} {
		if d := p.Decide(call("read_many_files", "", `{"include":["`+pattern+`"]}`)); d.Effect != want {
			t.Errorf("%s: %s, not %s (%s)", pattern, d.Effect, want, d.Reason)
		}
	}
}

// A pattern can reach the workspace from above. One of many alternatives would take longer to match than a user waits.
func TestAPatternThatHidesAFileIsAsked(t *testing.T) {
	p := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{"Read(.env)"}})
	many := strings.Repeat("{,}", 1000) + "x"
	for _, c := range []Call{
		call("Glob", "", `{"pattern":"/w*/ws/.env"}`), call("read_many_files", "", `{"include":["../w*/.env"]}`),
		call("Glob", "", `{"pattern":"`+many+`"}`), bash(t, "cat "+many),
		bash(t, "cat {..,x}/ws/.env"), bash(t, "cat .{.,x}/ws/.env"), bash(t, "cat {,x}/work/ws/.env"), bash(t, "cat {/work/ws/.env,x}"),
	} {
		if d := p.Decide(c); d.Effect != Ask {
			t.Errorf("%s %.30s: %s (%s)", c.Name, c.Input, d.Effect, d.Reason)
		}
	}
}

// The name of a server can make the name of a tool that of another one.
func TestServersThatHaveTheNamesOfOthers(t *testing.T) {
	p, err := New(Rules{
		Mode: ModeAsk, Allow: []string{"mcp__a__*", "Fetch(example.com)", "mcp__b*", "mcp__c__d__get"}, Deny: []string{"mcp__web__*", "mcp__a__b__drop"},
	}, Place{Workspace: "/work/ws", Servers: []string{"a", "a__b", "b__c", "web", "c", "c__d"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Effect{
		"mcp__a__get":     Allow,
		"mcp__a__b__get":  Ask, // of the server a__b
		"a/b__get":        Ask,
		"mcp__a__b__drop": Deny,
		"mcp__b__c__get":  Allow,
		"mcp__c__d__get":  Allow,
		"web_fetch":       Deny, // Gemini CLI has a tool of this name, and OpenCode's server web may have fetch
		"mcp__web__fetch": Deny,
		"WebFetch":        Allow,
	} {
		if d := p.Decide(call(name, "", `{"url":"https://example.com/"}`)); d.Effect != want {
			t.Errorf("%s: %s, not %s (%s)", name, d.Effect, want, d.Reason)
		}
	}
}
