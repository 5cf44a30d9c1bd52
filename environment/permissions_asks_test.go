package environment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/permission"
)

// TestAgentsAskAboutWhatTheyWouldRun has real agents read files and run harmless commands, about which they do not ask
// by themselves.
func TestAgentsAskAboutWhatTheyWouldRun(t *testing.T) {
	t.Parallel()
	api := keyedModel(t)
	rules := permission.Rules{Allow: []string{"Bash"}, Deny: []string{"Read(secret.txt)", "Bash(cat denied)"}}
	reads := map[string][]string{ // prompts, and how they end
		"claude": {
			"call-tool `Read {\"file_path\":\"%s/secret.txt\"}`", "reject_once rule once Read(secret.txt)",
			"call-tool `Read {\"file_path\":\"%s/public.txt\"}`", "allow_once mode once",
			"run-command `cat denied`", "reject_once rule once Bash(cat denied)",
			"run-command `cat secret.txt`", "reject_once answered once",
			"run-command `cd sub`", "allow_once mode once",
			"run-command `touch here`", "allow_once rule once Bash",
		},
		"opencode": {
			"call-tool `read {\"filePath\":\"%s/secret.txt\"}`", "reject_once rule once Read(secret.txt)",
			"call-tool `read {\"filePath\":\"%s/public.txt\"}`", "allow_once mode once",
			"call-tool `grep {\"pattern\":\"hidden\"}`", "reject_once answered once",
			"run-command `cat denied`", "reject_once rule once Bash(cat denied)",
			"run-command `touch here`", "allow_once rule once Bash",
		},
		"gemini": {
			"call-tool `read_file {\"file_path\":\"%s/secret.txt\"}`", "reject_once rule once Read(secret.txt)",
			"call-tool `read_file {\"file_path\":\"%s/public.txt\"}`", "allow_once mode once",
			"call-tool `list_directory {\"dir_path\":\"%s\"}`", "reject_once answered once",
			"run-command `cat denied`", "reject_once rule once Bash(cat denied)",
			"run-command `touch here`", "allow_once rule once Bash",
		},
		"codex": {
			"run-command `cat secret.txt`", "reject_once answered once",
			"run-command `/bin/sed -n 1,5p ./sub/../secret.txt`", "reject_once answered once",
			"run-command `cat denied`", "reject_once rule once Bash(cat denied)",
			"run-command `cd sub`", "allow_once mode once",
			"run-command `touch here`", "allow_once rule once Bash",
			// Its terminal is off, as is its tool for images: it would not ask about those.
			"call-tool `exec_command {\"cmd\":\"touch interactive\",\"tty\":true}`", "",
		},
	}
	for _, c := range keyedAgents() {
		prompts, ok := reads[c.name]
		if !ok {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			cfg := c.local(t, api)
			cfg.Agent.PermissionMode, cfg.Permissions, cfg.OnPermission = "", rules, RejectAll
			cfg.Workspace = []Source{{Files: []File{{Path: "secret.txt", Content: "hidden words\n"}, {Path: "public.txt", Content: "x\n"}, {Path: "denied"}, {Path: "sub/f"}}}}
			env := create(t, cfg)
			for i := 0; i < len(prompts); i += 2 {
				prompt := prompts[i]
				if strings.Contains(prompt, "%s") {
					prompt = fmt.Sprintf(prompt, env.Primitive().Paths().Workspace)
				}
				events, err := collect(t.Context(), env, Query{Prompt: "please " + prompt})
				if err != nil {
					t.Fatalf("%s: %v", prompt, err)
				}
				if got := strings.Join(ends(t, events), ", "); got != prompts[i+1] {
					t.Errorf("%s: it ended as %q, want %q; asked: %s", prompt, got, prompts[i+1], requests(t, events))
				}
				for _, ev := range events {
					if strings.Contains(string(ev.Payload), "hidden words") {
						t.Errorf("%s: it was read: %s", prompt, ev.Payload)
					}
				}
			}
			// A cd of an earlier command does not hold.
			if there := workspaceOf(t, env); there["sub/here"] != "" || there["interactive"] != "" || !slices.Contains(keysOf(there), "here") {
				t.Errorf("the workspace has %q", keysOf(there))
			}
		})
	}
}

func keysOf(files tree) (names []string) {
	for name := range files {
		names = append(names, name)
	}
	return names
}
