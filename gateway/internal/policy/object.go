package policy

import (
	"slices"
	"strconv"
	"strings"
)

// object is a JSON object that preserves the bytes of its members.
type object struct {
	whole   []byte
	members []member
	changed bool
}

type member struct {
	name  string
	whole []byte // the name and the value, as written
	value []byte
}

// members reads an object of at most limit members. It refuses duplicate names: the API could
// read the other member. Each value is read by read; nil skips it.
func (s *scanner) members(what string, limit int, read func(name string) error) (o object, err error) {
	if s.next() != '{' {
		return o, refuse("%s is no JSON object", what)
	}
	begin, names := s.pos, map[string]bool{}
	err = s.object(func(text []byte) error {
		from := s.name
		name, ok := decode(text)
		switch {
		case !ok:
			return refuse("%s has a name of more than %d bytes", what, maxName)
		case names[name]:
			return refuse("the member %q of %s stands twice", name, what)
		case len(names) == limit:
			return refuse("%s has more than %d members", what, limit)
		}
		names[name] = true
		_ = s.next()
		value := s.pos
		if read == nil {
			err = s.value()
		} else {
			err = read(name)
		}
		o.members = append(o.members, member{name: name, whole: s.data[from:s.pos], value: s.data[value:s.pos]})
		return err
	})
	o.whole = s.data[begin:s.pos]
	return o, err
}

// value returns the value of a member; nil if there is none.
func (o *object) value(name string) []byte {
	for _, m := range o.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// text returns the value of a member that is a string or missing or null.
func (o *object) text(name string) (_ string, ok bool) {
	switch value := o.value(name); {
	case value == nil, string(value) == "null":
		return "", true
	case value[0] != '"':
		return "", false
	default:
		return decode(value)
	}
}

// number returns the value of a member that is a whole number, else 0.
func (o *object) number(name string) int64 {
	value := o.value(name)
	n, err := strconv.ParseInt(strings.Trim(string(value[:min(len(value), maxName)]), `"`), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// set replaces the value of a member, or adds the member.
func (o *object) set(name string, value []byte) {
	o.changed = true
	added := member{name: name, whole: slices.Concat([]byte(strconv.Quote(name)), []byte(":"), value), value: value}
	for i, m := range o.members {
		if m.name == name {
			o.members[i] = added
			return
		}
	}
	o.members = append(o.members, added)
}

// remove removes members and reports whether there was one.
func (o *object) remove(names ...string) bool {
	before := len(o.members)
	o.members = slices.DeleteFunc(o.members, func(m member) bool { return slices.Contains(names, m.name) })
	o.changed = o.changed || len(o.members) < before
	return len(o.members) < before
}

// bytes returns the object, byte for byte as it was read if nothing has changed.
func (o *object) bytes() []byte {
	if !o.changed {
		return o.whole
	}
	parts := make([][]byte, len(o.members))
	for i, m := range o.members {
		parts[i] = m.whole
	}
	return join('{', parts, '}')
}

func join(first byte, parts [][]byte, last byte) []byte {
	size := 2 + len(parts)
	for _, p := range parts {
		size += len(p)
	}
	out := append(make([]byte, 0, size), first)
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, p...)
	}
	return append(out, last)
}
