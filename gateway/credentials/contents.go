package credentials

import (
	"encoding/json"
	"time"
)

// contents maps names to the decrypted secrets of the store. They exist in memory only.
type contents map[string]stored

type stored struct {
	Secret  string    `json:"secret"`
	Changed time.Time `json:"changed"`
}

// format is the version of the plain text.
const format = 1

type document struct {
	Format      int      `json:"format"`
	Credentials contents `json:"credentials"`
}

func (c contents) encode() []byte {
	data, _ := json.Marshal(document{format, c}) // cannot fail: texts, and years of four digits
	return data
}

// decode reports whether data is the plain text of a store. It returns no error because errors
// of encoding/json quote their input.
func decode(data []byte) (contents, bool) {
	var d document
	if json.Unmarshal(data, &d) != nil || d.Format != format {
		return nil, false
	}
	if d.Credentials == nil {
		d.Credentials = contents{}
	}
	for name, stored := range d.Credentials {
		if checkName(name) != nil || checkSecret(stored.Secret) != nil {
			return nil, false
		}
	}
	return d.Credentials, true
}
