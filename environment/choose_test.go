package environment_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

var (
	_ environment.Hosted = (*docker.Provider)(nil)
	_ environment.Hosted = (*local.Provider)(nil)
	_ environment.Hosted = (*modal.Provider)(nil)
	_ environment.Hosted = (*ssh.Provider)(nil)
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

// TestChooseChangesNoCopy checks that the Provider, which copies of a Sandbox share, stays as it is.
func TestChooseChangesNoCopy(t *testing.T) {
	given := &ssh.Provider{Host: "build1", Root: "/srv"}
	s := environment.Sandbox{Type: "ssh", Provider: given}
	other := s
	for _, word := range []string{"ssh:build2", "docker", "ssh:build3"} {
		if err := other.Choose(word); err != nil || other.Word() != word {
			t.Fatalf("%s: %s, %v", word, other.Word(), err)
		}
	}
	if p, ok := other.Provider.(*ssh.Provider); !ok || p.Root != "/srv" {
		t.Errorf("the copy has the Provider %+v", other.Provider)
	}
	if s.Word() != "ssh:build1" || s.Provider != given || given.Host != "build1" {
		t.Errorf("the original has become %s", s.Word())
	}
}

// TestAFileKeepsAllBlocks checks that blocks of other types survive reading, choosing and writing.
func TestAFileKeepsAllBlocks(t *testing.T) {
	const text = `{"docker":{"pids":99},"memory":1024,"modal":{"timeout":"1h0m0s"},"ssh":{"host":"build1"},"type":"ssh"}`
	var s environment.Sandbox
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"docker", "local", "ssh"} {
		if err := s.Choose(typ); err != nil {
			t.Fatal(err)
		}
		written, err := json.Marshal(s)
		if want := strings.Replace(text, `"type":"ssh"`, `"type":"`+typ+`"`, 1); err != nil || string(written) != want {
			t.Errorf("%s: written is %s, %v; want %s", typ, written, err, want)
		}
	}
}

func TestTypeAndProvider(t *testing.T) {
	for name, c := range map[string]struct {
		box  environment.Sandbox
		want string // the end of the error
	}{
		"no type":             {environment.Sandbox{Provider: &docker.Provider{}}, `its type is empty; set it to "docker", the type of a *docker.Provider`},
		"no type, another's":  {environment.Sandbox{Provider: theirs{}}, "its type is empty; set it to a name under which sandboxes of a environment_test.theirs are recorded"},
		"another's name":      {environment.Sandbox{Type: "docker", Provider: theirs{}}, `the type "docker" is that of a *docker.Provider, not of a environment_test.theirs; change the type with Choose, or give the Provider another one`},
		"another type's":      {environment.Sandbox{Type: "ssh", Provider: &docker.Provider{}}, `the type "ssh" is that of a *ssh.Provider, not of a *docker.Provider; change the type with Choose, or give the Provider another one`},
		"no pointer":          {environment.Sandbox{Type: "local", Provider: local.Provider{}}, `the type "local" is that of a *local.Provider, not of a local.Provider; change the type with Choose, or give the Provider another one`},
		"unknown":             {environment.Sandbox{Type: "nowhere"}, `there is no type "nowhere"; choose one of: docker, local, modal, ssh`},
		"a wrong name":        {environment.Sandbox{Type: "lcoal", Provider: &local.Provider{}}, `the type "lcoal" is not that of a *local.Provider; set it to "local"`},
		"a name of your own":  {environment.Sandbox{Type: "build", Provider: theirs{t.TempDir()}}, ""},
		"a nil pointer":       {environment.Sandbox{Type: "local", Provider: (*local.Provider)(nil)}, ""},
		"the registered name": {environment.Sandbox{Type: "local", Provider: &local.Provider{Root: t.TempDir()}}, ""},
	} {
		_, err := environment.List(t.Context(), c.box)
		if c.want == "" && err == nil {
			continue
		}
		if !errors.Is(err, environment.ErrConfig) || !strings.HasSuffix(err.Error(), "sandbox: "+c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// TestChooseFindsAProviderUnderItsOwnType checks the advice of the error about a wrong type.
func TestChooseFindsAProviderUnderItsOwnType(t *testing.T) {
	for _, typ := range []string{"local", ""} {
		s := environment.Sandbox{Type: typ, Provider: &docker.Provider{ReadOnly: true}}
		if err := s.Choose("docker"); err != nil {
			t.Fatal(err)
		}
		if p, ok := s.Provider.(*docker.Provider); !ok || !p.ReadOnly {
			t.Errorf("of the type %q: the Provider has become %#v", typ, s.Provider)
		}
	}
}
