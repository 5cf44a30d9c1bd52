package primitives

import (
	"maps"
	"slices"
	"sync"
)

// registered holds the function of each registered type.
var registered struct {
	sync.RWMutex
	types map[string]func() Provider
}

// Register makes the providers of one kind known by their type, a name such as "docker". newProvider
// returns a pointer to a new provider with the defaults, into which JSON can be decoded: the settings
// that only this kind has. Sessions store that JSON as it is, so a setting names a secret, as a
// variable or a file, and does not hold it.
//
// A backend calls Register in an init function of its package, so a program has the types whose
// packages it imports. Register panics if the type is empty or already registered, or if newProvider
// is nil.
func Register(typ string, newProvider func() Provider) {
	registered.Lock()
	defer registered.Unlock()
	switch {
	case typ == "":
		panic("primitives: Register: the type is empty")
	case newProvider == nil:
		panic("primitives: Register: the function of the type " + typ + " is nil")
	case registered.types[typ] != nil:
		panic("primitives: Register: called twice for the type " + typ)
	}
	if registered.types == nil {
		registered.types = make(map[string]func() Provider)
	}
	registered.types[typ] = newProvider
}

// Types returns the registered types, sorted.
func Types() []string {
	registered.RLock()
	defer registered.RUnlock()
	return slices.Sorted(maps.Keys(registered.types))
}

// NewProvider returns a new provider of a registered type. It is nil for any other type.
func NewProvider(typ string) Provider {
	registered.RLock()
	newProvider := registered.types[typ]
	registered.RUnlock()
	if newProvider == nil {
		return nil
	}
	return newProvider()
}
