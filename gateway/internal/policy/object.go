package policy

import (
	"maps"
	"math"
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

// names are the names of members that decide something here.
var names = func() map[string]bool {
	s := set("model", "n", "tools", "tool_choice", "parallel_tool_calls", "mcp_servers", "container", "web_search_options", "toolConfig", "tool_config",
		"background", "stream", "stream_options", "include_usage", "max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens",
		"generationConfig", "generation_config", "candidateCount", "candidate_count", "previous_response_id", "conversation", "cachedContent", "cached_content",
		"type", "name", "environment", "variables")
	maps.Copy(s, conversation)
	return s
}()

// folded maps names in lower case to themselves.
var folded = func() map[string]string {
	s := make(map[string]string, len(names))
	for name := range names {
		s[fold(name)] = name
	}
	return s
}()

// fold returns a name as programs compare it that take upper and lower case for the same.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// checkCase refuses a name that only some servers read as one of names, such as those that are
// written in Go.
func checkCase(name string) error {
	if names[name] {
		return nil
	}
	if known, ok := folded[fold(name)]; ok {
		return refuse("the member %q is written in upper and lower case as the API does not write it; write %q", name, known)
	}
	return nil
}

// members reads an object of at most limit members. It refuses duplicate names: the API could
// read the other member. Each value is read by read; nil skips it.
func (s *scanner) members(what string, limit int, read func(name string) error) (o object, err error) {
	if s.next() != '{' {
		return o, refuse("%s is no JSON object", what)
	}
	begin, seen := s.pos, map[string]bool{}
	err = s.object(func(text []byte) error {
		from := s.name
		name, ok := decode(text)
		switch {
		case !ok:
			return refuse("%s has a name of more than %d bytes", what, maxName)
		case seen[name]:
			return refuse("the member %q of %s stands twice", name, what)
		case len(seen) == limit:
			return refuse("%s has more than %d members", what, limit)
		}
		if err := checkCase(name); err != nil {
			return err
		}
		seen[name] = true
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

// number returns the value of a member that is a whole number, also as 1e3 or "1000", and at most
// most; else 0.
func (o *object) number(name string, most int64) int64 {
	value := o.value(name)
	n, err := strconv.ParseFloat(strings.Trim(string(value[:min(len(value), maxName)]), "\" "), 64)
	switch {
	case n >= float64(most): // or beyond what a float64 holds
		return most
	case err != nil || n != math.Trunc(n) || n < 0:
		return 0
	}
	return int64(n)
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
