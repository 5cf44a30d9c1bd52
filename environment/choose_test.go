package environment_test

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestChooseKeepsAllOtherSettings(t *testing.T) {
	s := environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: "web"}}
	for _, c := range []struct{ word, want string }{
		{"ssh:build1", "ssh:build1"},
		{"local", "local"},
		{"ssh", "ssh:build1"}, // the machine was kept too
		{"ssh:build2", "ssh:build2"},
	} {
		if err := s.Choose(c.word); err != nil || s.Word() != c.want || s.Image != "web" {
			t.Errorf("%s: %s with the image %q, %v", c.word, s.Word(), s.Image, err)
		}
	}
	if err := s.Choose("docker:build1"); !errors.Is(err, environment.ErrConfig) || s.Word() != "ssh:build2" {
		t.Errorf("a type without machines: %v, now %s", err, s.Word())
	}
}
