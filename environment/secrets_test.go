package environment

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func withEnv(env map[string]string) Config { return Config{Agent: Agent{Env: env}} }

func TestSecretsOfTheConfigurationAreRecognized(t *testing.T) {
	const long = "0123456789abcdef"
	secret := map[string]string{
		"OPENAI_API_KEY": long, "apiKey": long, "X-Api-Key": long, "GITHUB_TOKEN": long, "githubToken": long, "PGPASSWORD": long,
		"MYSQL_PWD": long, "CLIENT_SECRET": long, "Cookie": long, "AWS_SECRET_ACCESS_KEY": long, "GOOGLE_CREDENTIALS": long,
		"ANYTHING": "sk-ant-" + long, "OTHER": "ghp_" + long + long, "MORE": "-----BEGIN PRIVATE KEY-----\n" + long,
	}
	for name, value := range secret {
		if got := secretsOfConfig(withEnv(map[string]string{name: value})); len(got) == 0 || got[len(got)-1] != value && got[0] != value {
			t.Errorf("%s: the secrets are %q", name, got)
		}
	}
	setting := map[string]string{
		"OPENAI_BASE_URL": "https://api.example.com/v1", "ANTHROPIC_MODEL": "claude-sonnet-4-20250514", "NODE_ENV": "production",
		"PWD": "/home/me/project", "SSH_AUTH_SOCK": "/run/user/1000/ssh", "TOKEN_FILE": "/run/secrets/token", "AWS_ACCESS_KEY_ID": long,
		"API_KEY": "short", "TOKEN": "${OTHER_TOKEN}", "HTTPS_PROXY": "http://proxy.example.com:3128", "LANG": "en_US.UTF-8",
		"DATABASE_URL": "postgres://postgres@db.example.com/things", "IMAGE": "ghcr.io/example/image:2025-01-01",
	}
	if got := secretsOfConfig(withEnv(setting)); len(got) != 0 {
		t.Errorf("settings are secret: %q", got)
	}
	for raw, want := range map[string]string{
		"http://me:hunter2hunter2@proxy.example.com:3128":    "at http://[redacted]@proxy.example.com:3128",
		"postgres://me:hunter2hunter2@db.example.com/things": "at postgres://[redacted]@db.example.com/things",
		"https://" + long + "@git.example.com/x.git":         "at https://[redacted]@git.example.com/x.git",
		"https://example.com/x?api_key=" + long + "&a=b":     "at https://example.com/x?api_key=[redacted]&a=b",
	} {
		if got := redact.New(secretsOfConfig(withEnv(map[string]string{"SOME_URL": raw}))).Text("at " + raw); got != want {
			t.Errorf("%s is shown as %q", raw, got)
		}
	}
}

func TestSecretsAreFoundWhereverTheyAreConfigured(t *testing.T) {
	var box Sandbox
	box.Env = map[string]string{"API_KEY": "of-the-sandbox"}
	got := secretsOfConfig(Config{
		Sandbox: box,
		Agent: Agent{
			Env:    map[string]string{"A_TOKEN": "of-the-agent"},
			Config: json.RawMessage(`{"provider":{"x":{"options":[{"apiKey":"of-its-settings","baseURL":"https://example.com"}]}}}`),
		},
		Profile: Profile{MCPServers: []runnerscripts.MCPServer{{
			Env: map[string]string{"A_TOKEN": "of-the-server"}, Headers: map[string]string{"Authorization": "Bearer of-its-header"},
			Command: []string{"serve", "--api-key=of-its-command"}, URL: "https://me:of-its-url@example.com",
		}}},
		Workspace: []Source{{Git: &Git{URL: "https://me:of-the-repository@example.com"}}},
	})
	for _, want := range []string{
		"of-the-sandbox", "of-the-agent", "of-its-settings", "of-the-server",
		"of-its-header", "of-its-command", "of-its-url", "of-the-repository",
	} {
		if !reflect.DeepEqual(redact.New(got).Text("<"+want+">"), "<[redacted]>") {
			t.Errorf("%s is shown: %q", want, got)
		}
	}
}

// Whatever a script prints, no event, log record or error contains a secret, and all contain the
// address.
func TestNoSecretIsInAnyFieldOfAnyEvent(t *testing.T) {
	const secret, address = "sk-QASECRET/123456", "https://api.example.com/v1"
	for _, typ := range append(runnerscripts.EventTypes(), "from_the_future", "type_sk-QASECRET/123456") {
		t.Run(strings.ReplaceAll(string(typ), "/", ""), func(t *testing.T) {
			t.Parallel()
			var records bytes.Buffer
			payload := `{"message":"at https://api.example.com/v1 with sk-QASECRET\/123456","data":{"sk-QASECRET/123456":["\u0073k-QASECRET/123456"]}}`
			line := `{"type":"` + string(typ) + `","source":"sk-QASECRET/123456","conversation_id":"c-sk-QASECRET/123456","payload":` + payload + `}`
			says := shell("cat >/dev/null; cat <<'END'\n" + line + "\n{\"type\":\"result\",\"ok\":true}\nEND\n")
			env := create(t, Config{
				Agent:  Agent{Env: map[string]string{"OPENAI_API_KEY": secret, "OPENAI_BASE_URL": address}},
				Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &records}),
				Scripts: Scripts{
					SetupSession: says, ReadTranscript: says,
					ExecuteQuery: shell("cat <<'END'\n{\"type\":\"query_started\"}\n" + line + "\n" +
						`{"type":"query_failed","payload":{"code":"api","message":"` + secret + `"}}` + "\nEND\nread -r line"),
				},
			})
			events, err := collect(t.Context(), env, Query{Prompt: "x"})
			for ev, err := range env.ReadConversation(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, ev)
			}
			for _, ev := range events {
				all, err := json.Marshal(ev)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(all), "QASECRET") {
					t.Errorf("an event has the secret: %s", all)
				}
			}
			if shown, err := json.Marshal(events); err != nil || !strings.Contains(string(shown), address) {
				t.Errorf("the address is gone: %s, %v", shown, err)
			}
			if err == nil && typ != runnerscripts.TypeQueryCompleted {
				t.Error("the query has not failed")
			}
			if err != nil && strings.Contains(err.Error(), "QASECRET") || strings.Contains(records.String(), "QASECRET") {
				t.Errorf("error %v, log records:\n%s", err, records.String())
			}
		})
	}
}

func TestNoSecretIsInALogRecord(t *testing.T) {
	var records bytes.Buffer
	log := Config{
		Agent:  Agent{Env: map[string]string{"API_KEY": "hunter2hunter2"}},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &records}),
	}.withRedactingLogger().withRedactingLogger().Logger.Named("a").ResetNamed("b").With("with", "hunter2hunter2")
	log.Trace("hunter2hunter2", "a", errors.New("with hunter2hunter2"))
	log.Debug("hunter2hunter2", "a", []string{"hunter2hunter2"})
	log.Info("hunter2hunter2", "number", 12, "fine", "as it is")
	log.Warn("hunter2hunter2")
	log.Error("hunter2hunter2", "a", map[string]string{"k": "hunter2hunter2"})
	log.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true}).Print("[ERR] hunter2hunter2")
	log.StandardLogger(nil).Print("hunter2hunter2") // some libraries pass no options
	if got := records.String(); strings.Contains(got, "hunter2") || strings.Count(got, "[redacted]") < 12 ||
		strings.Count(got, "\n") != 7 || !strings.Contains(got, `number=12 fine="as it is"`) {
		t.Errorf("records:\n%s", got)
	}
}

// What is shown of a configuration has no secret, and is complete otherwise.
func TestAConfigurationIsShownWithoutSecrets(t *testing.T) {
	const long = "0123456789abcdef"
	cfg, err := ParseConfig([]byte(`{
		"sandbox": {"type": "local", "env": {"PLAIN": "a1"}},
		"agent": {
			"name": "claude", "env": {"WORD": "b2", "PASSED_ON": "${HOME}"},
			"config": {"apiKey": "c3", "baseURL": "https://example.com", "deep": [{"environment": {"ANY": "d4"}}]}
		},
		"credentials": {"anthropic": {"command": ["pass", "--token=e5` + long + `"]}},
		"profile": {"name": "reviewer", "mcp_servers": [
			{"name": "m", "url": "https://example.com/?api_key=g7` + long + `", "headers": {"X-Plain": "h8"}},
			{"name": "n", "command": ["curl", "-H", "Authorization: Bearer i9` + long + `", "--password", "l12` + long + `"]}
		]},
		"workspace": [
			{"files": [{"path": ".env", "content": "A=1\nDB_PASSWORD=\"j10` + long + `\"\n"}]},
			{"git": {"url": "https://k11` + long + `@git.example.com/x.git"}}
		]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := FormatSafely(cfg)
	if err != nil || !json.Valid(shown) {
		t.Fatalf("%s, %v", shown, err)
	}
	for _, secret := range []string{"a1", "b2", "c3", "d4", "e5", "g7", "h8", "i9", "j10", "k11", "l12"} {
		if bytes.Contains(shown, []byte(`"`+secret+`"`)) || bytes.Contains(shown, []byte(secret+long)) {
			t.Errorf("%s is in %s", secret, shown)
		}
	}
	for _, plain := range []string{`"reviewer"`, `"claude"`, `"PLAIN"`, `"${HOME}"`, `"baseURL":"https://example.com"`, `"pass"`, "git.example.com/x.git", `A=1`} {
		if !bytes.Contains(shown, []byte(plain)) {
			t.Errorf("%s is missing in %s", plain, shown)
		}
	}
}
