package session

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestARecordHasTheSettingsOfItsTypeAlone(t *testing.T) {
	var cfg Config
	const file = `{"type":"docker","docker":{"read_only":true},"ssh":{"host":"build1"}}`
	if err := json.Unmarshal([]byte(file), &cfg.Environment.Sandbox); err != nil {
		t.Fatal(err)
	}
	data, err := cfg.stored()
	if err != nil || strings.Contains(string(data), "build1") {
		t.Fatalf("stored: %s, %v", data, err)
	}
	// A Provider that is given for the next sandbox does not take the place of the stored settings.
	given := Config{Environment: environment.Config{Sandbox: environment.Sandbox{Provider: &docker.Provider{Pids: 7}}}}
	again, err := given.recalled(data)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := again.Environment.Sandbox.Provider.(*docker.Provider); !ok || !p.ReadOnly || p.Pids == 7 {
		t.Errorf("recalled: %+v", again.Environment.Sandbox.Provider)
	}
}

// The user stays that of the session, also if another one opens it.
func TestTheUserIsInTheRecord(t *testing.T) {
	data, err := Config{Environment: environment.Config{Session: environment.SessionState{User: "alice"}}}.stored()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := (Config{Environment: environment.Config{Session: environment.SessionState{User: "bob"}}}).recalled(data); err != nil || again.Environment.Session.User != "alice" {
		t.Errorf("it is %q, %v", again.Environment.Session.User, err)
	}
}
