package primitives_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// registeredProvider is a provider without sandboxes.
type registeredProvider struct {
	primitives.Provider
	Setting string
}

func TestRegister(t *testing.T) {
	made := func() primitives.Provider { return &registeredProvider{} }
	primitives.Register("test-b", made)
	primitives.Register("test-a", made)
	if types := primitives.Types(); !slices.IsSorted(types) || !slices.Contains(types, "test-a") || !slices.Contains(types, "test-b") {
		t.Errorf("the types are %q", types)
	}
	one, _ := primitives.NewProvider("test-a").(*registeredProvider)
	two, _ := primitives.NewProvider("test-a").(*registeredProvider)
	if one == nil || two == nil || one == two {
		t.Errorf("NewProvider returns %p and %p, want two providers", one, two)
	}
	if p := primitives.NewProvider("test-nowhere"); p != nil {
		t.Errorf("a type that nobody registered has the provider %v", p)
	}
}

func TestRegisterPanics(t *testing.T) {
	made := func() primitives.Provider { return &registeredProvider{} }
	primitives.Register("test-twice", made)
	for name, register := range map[string]func(){
		"empty":     func() { primitives.Register("", made) },
		"nil":       func() { primitives.Register("test-nil", nil) },
		"duplicate": func() { primitives.Register("test-twice", made) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			register()
		})
	}
}

// TestRegisterIsSafeForConcurrentUse is for the race detector.
func TestRegisterIsSafeForConcurrentUse(t *testing.T) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			typ := fmt.Sprintf("test-concurrent-%d", i)
			primitives.Register(typ, func() primitives.Provider { return &registeredProvider{} })
			if primitives.NewProvider(typ) == nil || !slices.Contains(primitives.Types(), typ) {
				t.Errorf("%s is not registered", typ)
			}
		})
	}
	all.Wait()
}
