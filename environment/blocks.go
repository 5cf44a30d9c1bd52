package environment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/primitives"
)

// ownTypes are the types of this module: the package of each has its name. A file may have their
// blocks in every program.
var ownTypes = []string{"docker", "local", "modal", "remote", "ssh"}

// unlinked is the block of a type that the program does not link.
type unlinked map[string]json.RawMessage

// plainSandbox is a Sandbox without its methods.
type plainSandbox Sandbox

// blockTypes returns the types of the blocks that a mapping of a sandbox may have beside its fields.
func blockTypes(t reflect.Type) map[string]reflect.Type {
	if t != reflect.TypeFor[Sandbox]() && t != reflect.TypeFor[plainSandbox]() {
		return nil
	}
	blocks := make(map[string]reflect.Type)
	for _, typ := range ownTypes {
		blocks[typ] = reflect.TypeFor[unlinked]()
	}
	for _, typ := range primitives.Types() {
		blocks[typ] = reflect.TypeOf(primitives.NewProvider(typ))
		if blocks[typ].Kind() == reflect.Pointer {
			blocks[typ] = blocks[typ].Elem()
		}
	}
	return blocks
}

// UnmarshalText reads a sandbox in one word: its type, or a type, a colon and the machine, as in
// "ssh:build1".
func (s *Sandbox) UnmarshalText(text []byte) error {
	*s = Sandbox{}
	return s.Choose(string(text))
}

// UnmarshalJSON reads both forms. A block is read into a Provider of its type. A setting that the
// type does not have is [ErrConfig].
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
	var read plainSandbox
	if err := reader.Decode(data, &read, "sandbox"); err != nil {
		return err
	}
	if read.Type == "" {
		return fmt.Errorf("%w: sandbox.type: it is empty; name the type, for example local", ErrConfig)
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(data, &settings); err != nil {
		return fmt.Errorf("%w: sandbox: %w", ErrConfig, err)
	}
	blocks := make(map[string]any)
	for typ := range blockTypes(reflect.TypeFor[Sandbox]()) {
		text, ok := settings[typ]
		if !ok || string(text) == "null" {
			continue
		}
		var block any = &unlinked{}
		if p := primitives.NewProvider(typ); p != nil {
			block = p
		}
		if err := reader.Decode(text, block, "sandbox."+typ); err != nil {
			return err
		}
		blocks[typ] = block
	}
	*s = Sandbox(read)
	s.choose(s.Type, blocks)
	return nil
}

// choose sets the type, the Provider of its block, and the other blocks.
func (s *Sandbox) choose(typ string, blocks map[string]any) {
	s.Type = typ
	s.Provider, _ = blocks[typ].(primitives.Provider)
	if s.Provider != nil {
		delete(blocks, typ)
	}
	if s.others = blocks; len(blocks) == 0 {
		s.others = nil
	}
}

// MarshalJSON writes what UnmarshalJSON reads, in the short form if that is complete. It leaves out a
// Provider that is not of a registered type, because no file can have its settings.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	settings, err := configfile.Settings(plainSandbox(s))
	if err != nil {
		return nil, err
	}
	for typ, block := range s.blocks() {
		if _, linked := block.(primitives.Provider); linked && !registeredAs(block, typ) {
			continue
		}
		fields, err := configfile.Settings(block)
		if err != nil {
			return nil, err
		}
		if len(fields) > 0 {
			settings[typ] = fields
		}
	}
	if delete(settings, "type"); len(settings) == 0 {
		return json.Marshal(s.Type)
	}
	settings["type"] = s.Type
	return json.Marshal(settings)
}

// blocks returns a new map of the blocks by type: each is a provider or unlinked.
func (s Sandbox) blocks() map[string]any {
	blocks := make(map[string]any)
	maps.Copy(blocks, s.others)
	if s.given() != nil {
		blocks[typeOf(s.Provider, s.Type)] = s.Provider
	}
	return blocks
}

// given returns the Provider; nil for a nil pointer, too.
func (s Sandbox) given() primitives.Provider {
	if v := reflect.ValueOf(s.Provider); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return s.Provider
}

// typeOf returns the registered type of a provider; otherwise, if there is none.
func typeOf(p primitives.Provider, otherwise string) string {
	for _, typ := range primitives.Types() {
		if registeredAs(p, typ) {
			return typ
		}
	}
	return otherwise
}

// Choose sets the type, and the machine if word names one, in the form of
// [Sandbox.UnmarshalText]. The Provider becomes that of the type's block. All other settings stay,
// and another Choose of the type of before finds its Provider again.
func (s *Sandbox) Choose(word string) error {
	typ, address, given := strings.Cut(word, ":")
	blocks := s.blocks()
	if given {
		p := clone(s.of(typ))
		at, ok := p.(primitives.Addressed)
		switch {
		case !ok && notLinked(typ):
			return errNotLinked(typ)
		case !ok:
			return fmt.Errorf("%w: sandbox: there is no type %q; only %s takes a machine after a colon", ErrConfig, word, strings.Join(addressedTypes(), " or "))
		}
		*at.Address() = address
		blocks[typ] = p
	}
	s.choose(typ, blocks)
	return nil
}

// Word returns the type, with the machine if it has one, in the form that [Sandbox.Choose]
// reads.
func (s Sandbox) Word() string {
	if p, ok := s.of(s.Type).(primitives.Addressed); ok && *p.Address() != "" {
		return s.Type + ":" + *p.Address()
	}
	return s.Type
}

// addressedTypes returns the types whose sandboxes are on a machine that the configuration
// names.
func addressedTypes() []string {
	return slices.DeleteFunc(primitives.Types(), func(typ string) bool {
		_, ok := primitives.NewProvider(typ).(primitives.Addressed)
		return !ok
	})
}

// of returns the provider of a type: s has it, or it is a new one. It is nil for a type that the
// program does not link.
func (s Sandbox) of(typ string) primitives.Provider {
	if p, ok := s.blocks()[typ].(primitives.Provider); ok {
		return p
	}
	return primitives.NewProvider(typ)
}

// registeredAs reports whether p is a provider of a registered type.
func registeredAs(p any, typ string) bool {
	own := primitives.NewProvider(typ)
	return own != nil && reflect.TypeOf(own) == reflect.TypeOf(p)
}

// notLinked reports whether typ is a type of this module that the program does not link.
func notLinked(typ string) bool {
	return slices.Contains(ownTypes, typ) && !slices.Contains(primitives.Types(), typ)
}

// errNotLinked returns the error for using a type that is notLinked.
func errNotLinked(typ string) error {
	return fmt.Errorf("%w: sandbox: this program has no type %q; import _ \"github.com/agentenv-dev/agentenv/primitives/%s\"", ErrConfig, typ, typ)
}

// clone returns a shallow copy of a provider, which the caller may change: the original can be in
// use by other calls. A provider that is no pointer to a struct is returned as it is.
func clone(p primitives.Provider) primitives.Provider {
	from := reflect.ValueOf(p)
	if from.Kind() != reflect.Pointer || from.IsNil() || from.Elem().Kind() != reflect.Struct {
		return p
	}
	to := reflect.New(from.Type().Elem())
	to.Elem().Set(from.Elem())
	copied, _ := to.Interface().(primitives.Provider) // of the same type
	return copied
}
