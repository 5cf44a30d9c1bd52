package codex

import (
	"encoding/json"
	"slices"
)

// strictKeywords are the keywords of JSON schemas that OpenAI's strict mode takes. It refuses a request with another one.
var strictKeywords = map[string]bool{
	"$schema": true, "$defs": true, "definitions": true, "$ref": true, "title": true, "description": true,
	"type": true, "properties": true, "required": true, "additionalProperties": true, "items": true, "anyOf": true, "enum": true, "const": true,
	"pattern": true, "format": true, "minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true, "multipleOf": true,
	"minItems": true, "maxItems": true,
}

// strictFormats are the formats of texts that it takes.
var strictFormats = []any{"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}

// The limits that strict mode has had from its beginning; they are higher for newer models.
const (
	strictDepth      = 5
	strictProperties = 100
)

// strictSchema reports whether OpenAI's strict mode takes a schema: an object, in which each part has a type, and each
// object all the properties that it may have.
func strictSchema(text json.RawMessage) bool {
	var root map[string]any
	if json.Unmarshal(text, &root) != nil || root["type"] != "object" {
		return false
	}
	left := strictProperties
	return strictPart(root, strictDepth, &left)
}

// strictPart is strictSchema for a part of a schema, with depth more levels of objects and lists, and left more properties.
func strictPart(part any, depth int, left *int) bool {
	s, ok := part.(map[string]any)
	if !ok || depth < 0 {
		return false
	}
	all := func(parts []any, depth int) bool {
		return !slices.ContainsFunc(parts, func(one any) bool { return !strictPart(one, depth, left) })
	}
	for keyword, value := range s {
		ok := strictKeywords[keyword]
		switch keyword {
		case "format":
			ok = slices.Contains(strictFormats, value)
		case "items":
			ok = strictPart(value, depth-1, left)
		case "anyOf":
			list, _ := value.([]any)
			ok = all(list, depth)
		case "$defs", "definitions", "properties":
			var parts []any
			named, _ := value.(map[string]any)
			for _, one := range named {
				parts = append(parts, one)
			}
			*left -= len(parts)
			ok = *left >= 0 && all(parts, depth-1)
		}
		if !ok {
			return false
		}
	}
	switch {
	case s["$ref"] != nil:
		return len(s) == 1
	case s["type"] == nil && s["anyOf"] == nil, mayBe(s, "array") && s["items"] == nil:
		return false
	}
	return !mayBe(s, "object") || requiresAll(s)
}

// mayBe reports whether a schema is for values of a type, among others.
func mayBe(s map[string]any, typ string) bool {
	types, _ := s["type"].([]any)
	return s["type"] == typ || slices.Contains(types, any(typ))
}

// requiresAll reports whether an object must have all properties that it may have.
func requiresAll(s map[string]any) bool {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for name := range properties {
		if !slices.Contains(required, any(name)) {
			return false
		}
	}
	return s["additionalProperties"] == false
}
