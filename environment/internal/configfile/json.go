package configfile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
)

// ToJSON converts one YAML or JSON document to JSON. Duplicate keys are an error.
func ToJSON(data []byte) ([]byte, error) {
	switch {
	case len(data) > MaxSize:
		return nil, fmt.Errorf("%w: it is larger than %d MiB", ErrInvalid, MaxSize>>20)
	case json.Valid(data):
		return data, duplicateKeys(data)
	case severalDocuments(data):
		return nil, fmt.Errorf("%w: there is more than one document in it; keep one", ErrInvalid)
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return asJSON, nil
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
