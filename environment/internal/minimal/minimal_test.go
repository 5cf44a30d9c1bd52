// Package minimal tests programs that import package environment and no backend.
package minimal

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// theirs is a provider of another module that registers itself.
type theirs struct {
	local.Provider
	Zone string `json:"zone,omitempty"`
}

func TestMain(m *testing.M) {
	primitives.Register("theirs", func() primitives.Provider { return new(theirs) })
	testleak.Main(m)
}

// TestAProgramLinksTheBackendsThatItImports looks for what is large in the other backends.
func TestAProgramLinksTheBackendsThatItImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/agentenv-dev/agentenv/examples/hello").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/agentenv-dev/agentenv/primitives/local") {
		t.Fatalf("no list of packages: %.200s", out)
	}
	for _, dep := range deps {
		for _, large := range []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/modal-labs", "github.com/docker/", "go.opentelemetry.io", "modernc.org/"} {
			if strings.HasPrefix(dep, large) {
				t.Errorf("examples/hello links %s", dep)
			}
		}
	}
}

func TestAFileWorksInEveryProgram(t *testing.T) {
	const text = `{"docker":{"mounts":[{"source":"/src"}],"pids":512},"modal":{"timeout":"10m"},"ssh":{"host":"build1"},"type":"local"}`
	cfg, err := environment.ParseConfig([]byte(`{"sandbox":` + text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	written, err := json.Marshal(cfg.Sandbox)
	if err != nil || string(written) != text {
		t.Errorf("written is %s, %v; want %s", written, err, text)
	}
	_, err = environment.ParseConfig([]byte("sandbox: {type: local, docker: 5}"))
	if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "sandbox.docker: it is 5; give a mapping") {
		t.Errorf("a block that is none: %v", err)
	}
	_, err = environment.ParseConfig([]byte("sandbox: {type: local, nowhere: {a: b}}"))
	if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "unknown key sandbox.nowhere; ") {
		t.Errorf("a block of no type: %v", err)
	}
}

func TestATypeThatIsNotLinked(t *testing.T) {
	const want = `invalid configuration: sandbox: this program has no type "ssh"; import _ "github.com/agentenv-dev/agentenv/primitives/ssh"`
	_, created := environment.Create(t.Context(), environment.Config{Sandbox: environment.Sandbox{Type: "ssh"}})
	_, listed := environment.List(t.Context(), environment.Sandbox{Type: "ssh"})
	_, parsed := environment.ParseConfig([]byte("sandbox: {type: ssh, ssh: {host: build1}}"))
	_, word := environment.ParseConfig([]byte("sandbox: ssh:build1"))
	for call, err := range map[string]error{"Create": created, "List": listed, "a mapping": parsed, "a word": word} {
		if !errors.Is(err, environment.ErrConfig) || err.Error() != want {
			t.Errorf("%s: %v, want %s", call, err, want)
		}
	}
	_, err := environment.List(t.Context(), environment.Sandbox{Type: "nowhere"})
	if !errors.Is(err, environment.ErrConfig) || !strings.HasSuffix(err.Error(), `there is no type "nowhere"; choose one of: local, theirs`) {
		t.Errorf("an unknown type: %v", err)
	}
	if types := environment.InstalledTypes(); !slices.Equal(types, []string{"local", "theirs"}) {
		t.Errorf("installed are %q", types)
	}
}

// TestATypeOfAnotherModule checks that a registered type is like those of this module: in a file,
// with its own block, and with the settings of the Config.
func TestATypeOfAnotherModule(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "env.yaml")
	if err := os.WriteFile(name, []byte("sandbox: {type: theirs, theirs: {root: boxes, zone: b}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := environment.LoadConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	want := &theirs{Provider: local.Provider{Root: filepath.Join(dir, "boxes")}, Zone: "b"}
	if !reflect.DeepEqual(cfg.Sandbox.Provider, want) {
		t.Errorf("the provider is %+v, want %+v", cfg.Sandbox.Provider, want)
	}
	cfg.Sandbox.Keep = true // needs the runner
	runs := false
	cfg.Sandbox.Provider.(*theirs).Runner = func(context.Context, string, string) (string, error) {
		runs = true
		return "", nil
	}
	env, err := environment.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !runs {
		t.Error("the provider did not get its runner")
	}
	if err := env.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = environment.ParseConfig([]byte("sandbox: {type: theirs, theirs: {zome: b}}"))
	if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "unknown key sandbox.theirs.zome; did you mean zone?") {
		t.Errorf("an unknown key: %v", err)
	}
}
