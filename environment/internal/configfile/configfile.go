// Package configfile reads configuration files and profiles.
//
// json.go converts YAML to JSON and rejects YAML that would lose data. decode.go decodes JSON
// strictly: an unknown key or a value of another type is an error that says where it is and
// suggests a correction. profile.go reads a profile; profile_folder.go collects a profile from
// the files of a folder, and profile_claude.go reads the files of Claude Code.
package configfile

import (
	"errors"
	"reflect"
)

// MaxSize limits the size of a configuration file: 4 MiB.
const MaxSize = 4 << 20

// ErrInvalid means that a configuration is invalid. The message says where and what to change.
var ErrInvalid = errors.New("invalid configuration")

// Reader decodes configurations.
type Reader struct {
	// Config is the type of a whole configuration. If an unknown key exists elsewhere in it, the
	// error says where.
	Config reflect.Type
	// Blocks returns the types of the keys that a struct type has beside its fields. Decode checks
	// their values, and the caller decodes them. Nil means none.
	Blocks func(t reflect.Type) map[string]reflect.Type
}
