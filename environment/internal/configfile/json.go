package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"sigs.k8s.io/yaml"

	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
)

// ToJSON converts one YAML or JSON document to JSON. Duplicate keys are an error. A file with a name such
// as echo.json must be JSON; an empty name is that of any file.
func ToJSON(name string, data []byte) ([]byte, error) {
	switch {
	case len(data) > MaxSize:
		return nil, fmt.Errorf("%w: it is larger than %d MiB", ErrInvalid, MaxSize>>20)
	case json.Valid(data):
		return data, duplicateKeys(data)
	case path.Ext(name) == ".json":
		return nil, noJSON(data)
	case severalDocuments(data):
		return nil, fmt.Errorf("%w: there is more than one document in it; keep one", ErrInvalid)
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return asJSON, nil
}

// noJSON returns the error for data that is not JSON.
func noJSON(data []byte) error {
	err := json.Unmarshal(data, new(json.RawMessage))
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		before := data[:min(at.Offset, int64(len(data)))]
		err = fmt.Errorf("line %d: %w", 1+bytes.Count(before, []byte("\n")), err)
	}
	return fmt.Errorf("%w: it is no JSON: %w; correct it, or name the file .yaml if it is YAML", ErrInvalid, err)
}

// severalDocuments reports whether a YAML stream holds more than one document: the decoder reads
// only the first. At the beginning of a line, the markers "---" and "..." have no other meaning.
func severalDocuments(data []byte) bool {
	begun, ended := false, false
	for line := range bytes.Lines(data) {
		word, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n\t "), []byte(" "))
		switch {
		case len(word) == 0 && len(bytes.TrimSpace(line)) == 0, line[0] == '#', !begun && line[0] == '%':
		case string(word) == "...":
			ended = begun
		case ended, begun && string(word) == "---":
			return true
		default:
			begun = true
		}
	}
	return false
}

// duplicateKeys returns an error for duplicate keys.
func duplicateKeys(data []byte) error {
	if err := jsonkeys.Unique(data); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
