// Package jsonkeys finds duplicate keys in JSON: encoding/json would take the last one.
package jsonkeys

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Unique returns an error that names the place of a duplicate key, or the error of JSON that is not valid. It looks at the
// first value in data. The caller bounds the depth of data, as json.Valid does.
func Unique(data []byte) error { return unique(json.NewDecoder(bytes.NewReader(data)), "") }

func unique(dec *json.Decoder, where string) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := make(map[string]bool)
	for i := 0; dec.More(); i++ {
		at := fmt.Sprintf("%s[%d]", where, i)
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string)
			if at = Join(where, name); seen[name] {
				return fmt.Errorf("the key %s stands twice; keep one", at)
			}
			seen[name] = true
		}
		if err := unique(dec, at); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the closing delimiter
	return err
}

// Join returns the place of a key below another place.
func Join(where, key string) string {
	if where == "" || key == "" {
		return where + key
	}
	return where + "." + key
}
