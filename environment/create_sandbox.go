package environment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
)

// Sandbox chooses the kind of sandbox and its settings. In a configuration file
// it is either one word, as [Sandbox.UnmarshalText] reads it, or a mapping of the type and the settings of that
// type:
//
//	sandbox: local
//	sandbox: {type: docker, image: golang:1.26, network: none}
//	sandbox: {type: modal, image: golang:1.26, cpu: 2}
//	sandbox: ssh:build1
type Sandbox struct {
	// Type is the kind: "local", "docker", "modal" or "ssh".
	Type string
	// Local is for the type "local": processes of this machine.
	Local local.Config
	// Docker is for the type "docker": a container. Without an Image it is made
	// of [DefaultImage]; where the image lacks the agent, [Create] makes the
	// container of one that is built on it, see [BuildImage]. Runner and Logger
	// come from the [Config] of the environment, and Keep is set when that of
	// the environment is.
	Docker docker.Config
	// Modal is for the type "modal": a sandbox at Modal. Without an Image it is
	// made of [DefaultImage]; if the agent is missing, Modal adds it to the image,
	// once. Runner, Logger and Keep are as for Docker.
	Modal modal.Config
	// SSH is for the type "ssh": another machine, which the ssh command reaches. Runner,
	// Logger and Keep are as for Docker.
	SSH ssh.Config
}

// UnmarshalText reads a sandbox that is one word: its type, or "ssh:" and the machine.
func (s *Sandbox) UnmarshalText(text []byte) error {
	typ, host, given := strings.Cut(string(text), ":")
	if given && typ != "ssh" {
		return fmt.Errorf("%w: sandbox: there is no type %q; only ssh takes a machine after a colon", ErrConfig, text)
	}
	*s = Sandbox{Type: typ, SSH: ssh.Config{Host: host}}
	return nil
}

// backend checks the choice and returns what makes such sandboxes.
func (s Sandbox) backend() (backend, error) {
	all := backends()
	names := slices.Sorted(maps.Keys(all))
	b, ok := all[s.Type]
	switch {
	case s.Type == "":
		return b, fmt.Errorf("%w: sandbox: its type is empty; set it to one of %s", ErrConfig, strings.Join(names, ", "))
	case !ok:
		return b, fmt.Errorf("%w: sandbox: there is no type %q; choose one of: %s", ErrConfig, s.Type, strings.Join(names, ", "))
	}
	for _, name := range names {
		if name != s.Type && !reflect.ValueOf(all[name].settings(&s)).Elem().IsZero() {
			return b, fmt.Errorf("%w: sandbox: two types: the type is %q and there are settings for %q; remove one of them", ErrConfig, s.Type, name)
		}
	}
	return b, nil
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
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(data, &settings); err != nil {
		return err
	}
	if err := json.Unmarshal(settings["type"], &s.Type); err != nil {
		return fmt.Errorf("%w: sandbox.type: it is empty; name the type, for example local", ErrConfig)
	}
	delete(settings, "type")
	b, err := s.backend()
	if err != nil {
		return err
	}
	for key := range settings {
		if _, ok := backends()[key]; ok {
			return fmt.Errorf("%w: sandbox: two types: %q and %q; keep one of them, and write its settings beside type", ErrConfig, s.Type, key)
		}
	}
	rest, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return decodeStrict(rest, b.settings(s), "sandbox")
}

// MarshalJSON writes what UnmarshalJSON reads, in the short form where it says
// all.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	b, ok := backends()[s.Type]
	if !ok {
		return json.Marshal(s.Type)
	}
	block, err := json.Marshal(b.settings(&s))
	if err != nil {
		return nil, err
	}
	settings := make(map[string]json.RawMessage)
	if err := json.Unmarshal(block, &settings); err != nil {
		return nil, err
	}
	if len(settings) == 0 {
		return json.Marshal(s.Type)
	}
	if settings["type"], err = json.Marshal(s.Type); err != nil {
		return nil, err
	}
	return json.Marshal(settings)
}
