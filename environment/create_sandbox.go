package environment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

// Sandbox chooses the kind of sandbox and its settings: Spec has those that all kinds
// share, and a block of the kind's name those that only it has. In a configuration file
// it is either one word, as [Sandbox.UnmarshalText] reads it, or a mapping:
//
//	sandbox: docker
//	sandbox: ssh:build1
//	sandbox: {type: docker, image: golang:1.26, memory: 2GiB, network: none, docker: {pids: 512}}
//
// Changing the type changes the kind and nothing else: a block of another kind may stay and
// does not count, and what the kind cannot do is errors.ErrUnsupported with the name of the
// setting.
type Sandbox struct {
	// Type is the kind: "local", "docker", "modal" or "ssh"; with Provider, any other name.
	Type string `json:"type,omitempty"`
	// Spec describes the sandbox. Without an Image, containers and sandboxes at Modal are
	// made of [DefaultImage]; if the image lacks the agent, [Create] uses one that is built on
	// it, see [BuildImage].
	primitives.Spec
	// Local is for the type "local": processes of this machine. The Runner, Logger and
	// Progress of this and the other blocks come from the [Config].
	Local local.Provider `json:"local,omitzero"`
	// Docker is for the type "docker": a container.
	Docker docker.Provider `json:"docker,omitzero"`
	// Modal is for the type "modal": a sandbox at Modal.
	Modal modal.Provider `json:"modal,omitzero"`
	// SSH is for the type "ssh": another machine, which the ssh command reaches.
	SSH ssh.Provider `json:"ssh,omitzero"`
	// Provider makes sandboxes of a kind that this module does not have. Type is the name
	// under which they are recorded.
	Provider primitives.Provider `json:"-"`
}

// UnmarshalText reads a sandbox that is one word: its type, or "ssh:" and the machine.
func (s *Sandbox) UnmarshalText(text []byte) error {
	typ, host, given := strings.Cut(string(text), ":")
	if given && typ != "ssh" {
		return fmt.Errorf("%w: sandbox: there is no type %q; only ssh takes a machine after a colon", ErrConfig, text)
	}
	*s = Sandbox{Type: typ, SSH: ssh.Provider{Host: host}}
	return nil
}

// UnmarshalJSON reads both forms. A setting that the type does not have is
// [ErrConfig].
func (s *Sandbox) UnmarshalJSON(data []byte) error {
	*s = Sandbox{}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		var word string
		if err := json.Unmarshal(data, &word); err != nil {
			return fmt.Errorf("%w: sandbox: it is no type and no mapping; give a type, as in 'sandbox: docker', or a mapping with a type and its settings", ErrConfig)
		}
		return s.UnmarshalText([]byte(word))
	}
	type plain Sandbox // without this method
	var read plain
	if err := decodeStrict(data, &read, "sandbox"); err != nil {
		return err
	}
	if read.Type == "" {
		return fmt.Errorf("%w: sandbox.type: it is empty; name the type, for example local", ErrConfig)
	}
	*s = Sandbox(read)
	return s.check()
}

// MarshalJSON writes what UnmarshalJSON reads, in the short form where it says
// all.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	type plain Sandbox // without this method
	data, err := json.Marshal(plain(s))
	if err != nil {
		return nil, err
	}
	var settings map[string]any
	if err := decodeNumbers(data, &settings); err != nil {
		return nil, err
	}
	if delete(settings, "type"); len(settings) == 0 {
		return json.Marshal(s.Type)
	}
	settings["type"] = s.Type
	writeDurations(settings, reflect.TypeFor[plain]())
	return json.Marshal(settings)
}
