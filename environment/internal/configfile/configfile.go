// Package configfile reads configuration files and profiles.
//
// json.go makes JSON of YAML and refuses what that would lose. decode.go decodes it
// strictly: an unknown key or a value of another type is an error that says where it
// stands and what may be meant. profile.go reads a profile; profile_folder.go collects one
// from the files of a folder, and profile_claude.go reads those of Claude Code.
package configfile

import (
	"errors"
	"reflect"
)

// MaxSize is how large a configuration file may be: 4 MiB.
const MaxSize = 4 << 20

// ErrInvalid says that a configuration makes no sense. The message says where and what to
// change.
var ErrInvalid = errors.New("invalid configuration")

// Reader decodes configurations.
type Reader struct {
	// Config is the type of a whole configuration. An unknown key that stands elsewhere
	// in it is an error that says where.
	Config reflect.Type
}
