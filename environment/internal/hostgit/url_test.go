package hostgit

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
)

// unclear are URLs whose password, made of pieces that begin with "hunter", is not
// percent-encoded.
var unclear = []Repository{
	{URL: "https://me:hunter1#hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1/hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1?hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1%hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1 hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1[hunter2]@example.com/x.git"},
	{URL: "https://me:hunter1@/hunter2@example.com/x.git"},
	{URL: "https://me:hunter1@hunter2/hunter3@example.com/x.git"},
	{URL: "https://me:12/hunter1@example.com/x.git"}, // as a port
	{URL: "https://me:12#hunter1@example.com/x.git"},
	{URL: "https://me:12?hunter1@example.com/x.git"},
	{URL: "https://me:/hunter1@example.com/x.git"},
	{URL: "https://j.doe:#hunter1@example.com/x.git"},
	{URL: "https://j.doe:/hunter1@example.com/x.git"},
	{URL: "https://me@example.org:hunter1/hunter2@example.com/x.git"},
	{URL: "https://hunter1#hunter2@example.com/x.git"}, // a token
	{URL: "https:///me:hunter1@example.com/x.git"},
	{URL: "https:///me:hunter1%hunter2@example.com/x.git"},
	{URL: "ssh://me:hunter1#hunter2@example.com/x.git"},
	{URL: " https://me:hunter1@example.com/x.git"},
	// envctl uses what follows the first # as the ref.
	{URL: "https://me:hunter1", Ref: "hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1/hunter2", Ref: "hunter3@example.com/x.git"},
	{URL: "https://me:hunter1", Ref: "hunter2^@example.com/x.git"},
	{URL: "https://me:12", Ref: "hunter1@example.com/x.git"},
	{URL: "https://hunter1", Ref: "hunter2@example.com/x.git"},
}

func TestAPasswordThatIsNotEncodedIsCutOff(t *testing.T) {
	for _, g := range unclear {
		if err := g.Check(); err == nil || !strings.Contains(err.Error(), "percent-encode") || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s with %q: %v, want what to do, without the password", g.URL, g.Ref, err)
		}
		if !strings.Contains(g.URL, "@") {
			continue
		}
		if name := WithoutCredentials(g.URL); strings.Contains(name, "hunter") || !strings.Contains(name, "example.com/x.git") {
			t.Errorf("%s is named %s", g.URL, name)
		}
		if env, address := credentialEnv(g.URL); strings.Contains(address, "hunter") || len(env) != 0 {
			t.Errorf("%s becomes %s with %q", g.URL, address, env)
		}
		if got := redact.New(SecretsOf(g.URL)).Text("fatal: " + g.URL); strings.Contains(got, "hunter") {
			t.Errorf("%s is shown as %s", g.URL, got)
		}
	}
}

func TestAddressesOfGitAreTakenAsTheyAre(t *testing.T) {
	for _, c := range []struct{ raw, name, secret string }{
		{"/srv/x@2/y.git", "/srv/x@2/y.git", ""},
		{"../x@2", "../x@2", ""},
		{"file:///srv/100%/x@2/y.git", "file:///srv/100%/x@2/y.git", ""},
		{"file:///srv/a:b#c@d", "file:///srv/a:b#c@d", ""},
		{"git@example.com:me/x.git", "git@example.com:me/x.git", ""},
		{"git@example.com:me/x@v1#1.git", "git@example.com:me/x@v1#1.git", ""},
		{"example.com:me/x.git", "example.com:me/x.git", ""},
		{"ssh://git@example.com/me/x.git", "ssh://example.com/me/x.git", ""},
		{"ssh://git@example.com:22/me/x@v1.git", "ssh://example.com:22/me/x@v1.git", ""},
		{"ssh://example.com/~me/x.git", "ssh://example.com/~me/x.git", ""},
		{"git://example.com:9418/x.git", "git://example.com:9418/x.git", ""},
		{"https://example.com", "https://example.com", ""},
		{"https://example.com/x.git?a#b", "https://example.com/x.git?a#b", ""},
		{"https://example.com/100%.git", "https://example.com/100%.git", ""},
		{"https://example.com/path@v1/x.git", "https://example.com/path@v1/x.git", ""},
		{"https://example.com:8443/path@v1/x.git", "https://example.com:8443/path@v1/x.git", ""},
		{"http://localhost:3000/@me/x.git", "http://localhost:3000/@me/x.git", ""},
		{"http://gitea:3000/me/x.git", "http://gitea:3000/me/x.git", ""},
		{"http://gitea/@me/x.git", "http://gitea/@me/x.git", ""},
		{"https://token@example.com/x.git", "https://example.com/x.git", "token"},
		{"https://token@example.com/path@v1/x.git", "https://example.com/path@v1/x.git", "token"},
		{"https://me:hunter2@example.com/x.git", "https://example.com/x.git", "hunter2"},
		{"https://me:hunter2@example.com", "https://example.com", "hunter2"},
		{"https://me:hunter2@example.com/path%40v1/x.git", "https://example.com/path%40v1/x.git", "hunter2"},
		{"https://me:a%23b%2Fc%25d%40e@example.com:8443/x.git", "https://example.com:8443/x.git", "a#b/c%d@e"},
		{"https://me@example.org:hunter2@example.com/x.git", "https://example.com/x.git", "hunter2"},
		{"https://me:hunt@er2@example.com/x.git", "https://example.com/x.git", "hunt@er2"},
		{"https://:hunter2@example.com/x.git", "https://example.com/x.git", "hunter2"},
	} {
		if err := (Repository{URL: c.raw, Ref: "pkg#1"}).Check(); err != nil {
			t.Errorf("%s: %v", c.raw, err)
		}
		if got := WithoutCredentials(c.raw); got != c.name {
			t.Errorf("%s is named %s, want %s", c.raw, got, c.name)
		}
		want := c.name
		if strings.HasPrefix(c.raw, "ssh://") {
			want = c.raw // the user is no secret
		}
		if _, address := credentialEnv(c.raw); address != want {
			t.Errorf("%s becomes %s, want %s", c.raw, address, want)
		}
		if got := redact.New(SecretsOf(c.raw)).Text("a " + c.secret + " b"); c.secret != "" && strings.Contains(got, c.secret) {
			t.Errorf("%s: %s is shown", c.raw, got)
		}
	}
	// Tags in the style of a package repository.
	if err := (Repository{URL: "https://me:hunter2@example.com/x.git", Ref: "@me/pkg@1.2.3"}).Check(); err != nil {
		t.Error(err)
	}
	if err := (Repository{URL: "http://gitea:3000/x.git", Ref: "pkg@1.2.3"}).Check(); err != nil {
		t.Error(err)
	}
}

func TestAPasswordForSSHIsNotHandedOn(t *testing.T) {
	for raw, want := range map[string]string{
		"ssh://git:hunter2@example.com/x.git": "ssh://git@example.com/x.git",
		"ssh://git@example.com:22/x.git":      "ssh://git@example.com:22/x.git",
		"git@example.com:x.git":               "git@example.com:x.git",
	} {
		if env, address := credentialEnv(raw); address != want || len(env) != 0 {
			t.Errorf("%s becomes %s with %q, want %s", raw, address, env, want)
		}
	}
}
