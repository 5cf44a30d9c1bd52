package schema

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/agentenv-dev/agentenv/executor"
)

const (
	// maxViolations bounds the list of violations.
	maxViolations = 20
	// maxText bounds the path and the message of a violation, in bytes. An agent gets them in a prompt.
	maxText = 1 << 10
)

// list returns what is wrong in a value, sorted by place.
func (s *Schema) list(e *jsonschema.ValidationError, value any) []executor.Violation {
	all := s.violations(e, value)
	slices.SortFunc(all, func(a, b executor.Violation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.SchemaPath, b.SchemaPath), cmp.Compare(a.Message, b.Message))
	})
	all = slices.CompactFunc(all, func(a, b executor.Violation) bool { // parts of a schema can say the same
		return a.Path == b.Path && a.Message == b.Message
	})
	all = all[:min(len(all), maxViolations)]
	for i := range all {
		all[i].Path = cut(all[i].Path)
	}
	return all
}

// cut shortens a text to maxText bytes.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	const mark = "..."
	return strings.ToValidUTF8(text[:maxText-len(mark)], "") + mark
}

// violations returns the innermost errors of a value.
func (s *Schema) violations(e *jsonschema.ValidationError, value any) (all []executor.Violation) {
	at := jsonPath(value, e.InstanceLocation)
	add := func(at, text string) {
		_, part, _ := strings.Cut(e.SchemaURL, "#/")
		keyword := path.Join(e.ErrorKind.KeywordPath()...)
		all = append(all, executor.Violation{Path: at, Message: cut(text), SchemaPath: path.Join(part, keyword)})
	}
	text := e.ErrorKind.LocalizedString(message.NewPrinter(language.English))
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf, *kind.PropertyNames, *kind.ContentSchema:
		for _, cause := range e.Causes {
			all = append(all, s.violations(cause, value)...)
		}
	case *kind.Required:
		for _, name := range k.Missing {
			add(at, fmt.Sprintf("%q is required", name))
		}
	case *kind.AdditionalProperties:
		text = "it is not allowed here"
		if names := s.properties(e.SchemaURL); len(names) > 0 {
			text += "; there are: " + strings.Join(names, ", ")
		}
		for _, name := range k.Properties {
			add(at+"."+name, text)
		}
	case *kind.AnyOf, *kind.OneOf:
		branches := s.branches(e, value, at)
		if len(branches) == 1 {
			return branches[0]
		}
		for i, branch := range branches {
			text += []string{": ", ", or "}[min(i, 1)] + together(branch, at)
		}
		add(at, text)
	default:
		add(at, text)
	}
	return all
}

// branches returns the errors of each part of an anyOf or oneOf. Parts for another type of value are left
// out if there is one for this type.
func (s *Schema) branches(e *jsonschema.ValidationError, value any, at string) (all [][]executor.Violation) {
	var others [][]executor.Violation
	for _, cause := range e.Causes {
		branch := s.violations(cause, value)
		if slices.ContainsFunc(branch, func(v executor.Violation) bool { return v.Path == at && path.Base(v.SchemaPath) == "type" }) {
			others = append(others, branch)
			continue
		}
		all = append(all, branch)
	}
	if len(all) == 0 {
		return others
	}
	return all
}

// together returns the errors of a branch for a value that is at a place.
func together(branch []executor.Violation, at string) string {
	var all []string
	for _, v := range branch {
		all = append(all, strings.TrimPrefix(v.Path+": "+v.Message, at+": "))
	}
	return strings.Join(all, " and ")
}

// properties returns the names of the properties of a part of the schema, sorted.
func (s *Schema) properties(url string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, err := s.compiler.Compile(url) // it is compiled already
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(part.Properties))
}

// jsonPath returns where the part of a value with this location is, as in $.friends[1].name.
func jsonPath(value any, location []string) string {
	at := "$"
	for _, name := range location {
		switch whole := value.(type) {
		case []any:
			at += "[" + name + "]"
			if i, err := strconv.Atoi(name); err == nil && i < len(whole) {
				value = whole[i]
			}
		case map[string]any:
			at += "." + name
			value = whole[name]
		}
	}
	return at
}
