package policy

import (
	"bytes"
	"encoding/json"
	"slices"
)

// object is a JSON object that preserves the bytes of its values.
type object struct {
	whole   []byte
	members []member
	changed bool
}

type member struct {
	name  string
	key   []byte // as it was written
	value json.RawMessage
}

// parse returns the members of an object. It refuses duplicate names: the API could read the
// other member.
func parse(data []byte) (object, error) {
	o := object{whole: data}
	dec := json.NewDecoder(bytes.NewReader(data))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') {
		return o, refuse("the body is no JSON object")
	}
	names := map[string]bool{}
	for dec.More() {
		before := dec.InputOffset()
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return o, refuse("the body is damaged JSON: a name is missing")
		}
		m := member{name: name, key: bytes.TrimLeft(data[before:dec.InputOffset()], " \t\r\n,")}
		if err := dec.Decode(&m.value); err != nil {
			return o, refuse("the body is damaged JSON: %v", err)
		}
		if names[name] {
			return o, refuse("the member %q stands twice", name)
		}
		names[name] = true
		o.members = append(o.members, m)
	}
	if _, err := dec.Token(); err != nil {
		return o, refuse("the body is damaged JSON: %v", err)
	}
	if len(bytes.Trim(data[dec.InputOffset():], " \t\r\n")) > 0 {
		return o, refuse("the body has more than one JSON object")
	}
	return o, nil
}

func (o *object) index(name string) int {
	return slices.IndexFunc(o.members, func(m member) bool { return m.name == name })
}

// value returns the value of a member; nil if there is none.
func (o *object) value(name string) json.RawMessage {
	if i := o.index(name); i >= 0 {
		return o.members[i].value
	}
	return nil
}

// set replaces the value of an existing member.
func (o *object) set(name string, value json.RawMessage) {
	if i := o.index(name); i >= 0 {
		o.members[i].value, o.changed = value, true
	}
}

func (o *object) remove(name string) {
	if i := o.index(name); i >= 0 {
		o.members, o.changed = slices.Delete(o.members, i, i+1), true
	}
}

// bytes returns the object, byte for byte as it was parsed if nothing has changed.
func (o *object) bytes() []byte {
	if !o.changed {
		return o.whole
	}
	parts := make([]json.RawMessage, len(o.members))
	for i, m := range o.members {
		parts[i] = slices.Concat(m.key, []byte(":"), m.value)
	}
	return join('{', parts, '}')
}

func join(open byte, parts []json.RawMessage, end byte) []byte {
	out := []byte{open}
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, p...)
	}
	return append(out, end)
}
