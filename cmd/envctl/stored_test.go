package main

import (
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
)

func TestAFileOverridesTheStoredCoordinator(t *testing.T) {
	stored := environment.Config{Coordinator: environment.Coordinator{URL: "http://old", Profile: "p", SessionID: "ses_1", OAuth2: &environment.OAuth2{}}}
	given := environment.Config{Coordinator: environment.Coordinator{URL: "http://new", Profile: "p"}}
	for _, g := range []environment.Config{given, {}} { // without one, it stays
		if err := new(target).overrideStored(&stored, g); err != nil {
			t.Fatal(err)
		}
		if c := stored.Coordinator; c.URL != "http://new" || c.SessionID != "ses_1" || c.OAuth2 != nil {
			t.Errorf("the coordinator is %+v", c)
		}
	}
}
