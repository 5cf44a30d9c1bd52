package server

import (
	"encoding/json"
	"maps"

	"github.com/agentenv-dev/agentenv/environment"
)

// parts are the keys of a configuration whose settings belong to one kind of thing, and the key that names the kind. Their
// value may be that name alone.
var parts = map[string]string{"sandbox": "type", "agent": "name"}

// complete adds to a configuration what the client has left out. Settings of the default sandbox or agent are not those of
// another one that the client names. Lists are not joined.
func complete(defaults environment.Config, given json.RawMessage) (json.RawMessage, error) {
	data, err := environment.FormatConfig(defaults)
	if err != nil {
		return nil, err
	}
	var base, over map[string]any
	if err := json.Unmarshal(data, &base); err != nil {
		return nil, err
	}
	if len(given) == 0 {
		return data, nil
	}
	if json.Unmarshal(given, &over) != nil || over == nil {
		return given, nil // environment.ParseConfig says what it is
	}
	for key, kind := range parts {
		b, o := named(base[key], kind), named(over[key], kind)
		if o == nil {
			continue
		}
		if over[key] = o; o[kind] == "" {
			delete(o, kind)
		}
		if name, chosen := o[kind]; chosen && name != b[kind] {
			delete(base, key)
		} else if b != nil {
			base[key] = b
		}
	}
	return json.Marshal(merge(base, over))
}

// named returns a part of a configuration, which may be a name alone; nil if it is neither.
func named(v any, kind string) map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return v
	case string:
		return map[string]any{kind: v}
	}
	return nil
}

// merge returns base with what is in over.
func merge(base, over map[string]any) map[string]any {
	merged := maps.Clone(base)
	if merged == nil {
		merged = make(map[string]any)
	}
	for key, value := range over {
		b, isB := merged[key].(map[string]any)
		o, isO := value.(map[string]any)
		if isB && isO {
			merged[key] = merge(b, o)
		} else {
			merged[key] = value
		}
	}
	return merged
}
