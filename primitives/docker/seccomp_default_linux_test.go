package docker

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/moby/profiles/seccomp"
)

// An older copy can allow more than the engine's own default, as it did for sockets.
func TestTheDefaultProfileIsThatOfItsModule(t *testing.T) {
	t.Parallel()
	module, err := json.Marshal(seccomp.DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	var own, want any
	if err := json.Unmarshal(module, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(defaultProfile, &own); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(own, want) {
		t.Error("copy default.json of the module's new version to seccomp_default.json")
	}
}
