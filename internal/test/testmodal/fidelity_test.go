package testmodal_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

// Reasons why some of the SDK's tests do not apply.
const (
	needsFunction = "calls a function that people have deployed; the server runs sandboxes only"
	needsQueue    = "uses a queue; the server has none"
	needsSidecar  = "runs a second container in a sandbox; a sandbox of the server is one"
)

// notApplying has the SDK's tests that use a server and cannot pass with this one, with the
// reasons.
var notApplying = map[string]string{
	"TestClsCall":                            needsFunction,
	"TestClsCallInputPlane":                  needsFunction,
	"TestClsNotFound":                        needsFunction,
	"TestFunctionCall":                       needsFunction,
	"TestFunctionCallDateTimeRoundtrip":      needsFunction,
	"TestFunctionCallGet0":                   needsFunction,
	"TestFunctionCallGoMap":                  needsFunction,
	"TestFunctionCallInputPlane":             needsFunction,
	"TestFunctionCallLargeInput":             needsFunction,
	"TestFunctionCallPreCborVersionError":    needsFunction,
	"TestFunctionFromNameWithDotNotation":    needsFunction,
	"TestFunctionNotFound":                   needsFunction,
	"TestFunctionSpawn":                      needsFunction,
	"TestQueueEphemeral":                     needsQueue,
	"TestQueueInvalidName":                   needsQueue,
	"TestQueueNonBlocking":                   needsQueue,
	"TestQueueNonEphemeral":                  needsQueue,
	"TestQueuePutAndGetMany":                 needsQueue,
	"TestQueueSuite1":                        needsQueue,
	"TestQueueSuite2":                        needsQueue,
	"TestSidecarBasicLifecycle":              needsSidecar,
	"TestSidecarCreateForwardsSecretsAndEnv": needsSidecar,
	"TestSidecarCreateMountsVolume":          needsSidecar,
	"TestSidecarExec":                        needsSidecar,
	"TestSidecarFilesystem":                  needsSidecar,
	"TestSidecarWaitAfterNaturalExit":        needsSidecar,
	"TestWebEndpointRemoteCallError":         needsFunction,
	"TestWebEndpointSpawnCallError":          needsFunction,
}

// wantFileTests is how many file system tests the SDK has.
const wantFileTests = 81

func TestTheSDKsOwnTestsPassAgainstTheServer(t *testing.T) {
	needRoot(t) // the tests write to paths of their sandboxes
	module := output(t, "", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/modal-labs/modal-client/go")
	t.Run("file system", func(t *testing.T) {
		names := testsThatUse(t, module, "newTestSandbox")
		if len(names) != wantFileTests {
			t.Errorf("the SDK has %d tests of its file system, not %d", len(names), wantFileTests)
		}
		binary := buildTests(t, module)
		watches := func(name string) bool { return strings.Contains(name, "Watch") }
		groups := [][]string{slices.DeleteFunc(slices.Clone(names), watches)}
		for _, name := range names {
			if watches(name) { // each waits for seconds
				groups = append(groups, []string{name})
			}
		}
		mustPass(t, names, runTests(t, binary, module, groups))
	})
	t.Run("sandboxes", func(t *testing.T) {
		folder := filepath.Join(module, "test")
		names := testsThatUse(t, folder, "newTestClient")
		for name := range maps.Keys(notApplying) {
			if !slices.Contains(names, name) {
				t.Errorf("%s is said not to apply, but the SDK has no such test", name)
			}
		}
		names = slices.DeleteFunc(names, func(name string) bool { return notApplying[name] != "" })
		mustPass(t, names, runTests(t, buildTests(t, folder), folder, [][]string{names}))
	})
}

// testsThatUse returns the tests of a folder that call a function.
func testsThatUse(t *testing.T, folder, function string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			uses := false
			ast.Inspect(fn, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				uses = uses || ok && id.Name == function
				return !uses
			})
			if uses {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// buildTests compiles the tests of a folder of the module cache, with the versions in its own
// go.mod.
func buildTests(t *testing.T, folder string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "sdk.test")
	output(t, folder, "go", "test", "-c", "-tags", "integration", "-o", binary, ".")
	return binary
}

// atOnce is how many groups of tests run at the same time. It is small, since they load the
// machine.
const atOnce = 4

// runTests runs groups of tests with a server and returns the result of each test. Some of the
// SDK's tests depend on timing: a test that fails is run once more, alone.
func runTests(t *testing.T, binary, folder string, groups [][]string) map[string]string {
	t.Helper()
	s := testmodal.New(t)
	prepare(s)
	config := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	results := map[string]string{}
	var mu sync.Mutex
	runGroup := func(names []string) {
		cmd := exec.CommandContext(t.Context(), binary, "-test.v", "-test.timeout", "5m", "-test.run", "^("+strings.Join(names, "|")+")$")
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), s.Environ(config)...)
		out, err := cmd.CombinedOutput()
		mu.Lock()
		defer mu.Unlock()
		parseResults(string(out), results)
		if err != nil {
			t.Logf("%v: %v\n%s", names, err, out)
		}
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, names := range groups {
		all.Go(func() error {
			runGroup(names)
			return nil
		})
	}
	_ = all.Wait() // no function returns an error
	for _, name := range slices.Concat(groups...) {
		if results[name] != "PASS" {
			t.Logf("%s is run once more, alone", name)
			runGroup([]string{name})
		}
	}
	return results
}

// prepare creates the objects that the SDK's tests expect.
func prepare(s *testmodal.Server) {
	s.AddEnvironment("libmodal")
	s.AddSecret("libmodal-test-secret", map[string]string{"a": "1", "b": "2", "c": "hello world"})
	s.AddSecret("libmodal-aws-ecr-test", map[string]string{"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"})
	s.AddSecret("libmodal-gcp-artifact-registry-test", map[string]string{
		"REGISTRY_USERNAME": "x", "REGISTRY_PASSWORD": "x", "SERVICE_ACCOUNT_JSON": "x",
	})
	s.AddProxy("libmodal-test-proxy")
	s.AddImage("us-east1-docker.pkg.dev/modal-prod-367916/private-repo-test/my-image")
	s.AddImage("459781239556.dkr.ecr.us-east-1.amazonaws.com/ecr-private-registry-test-7522615")
}

// parseResults parses the results of tests, without subtests, from a test binary's output.
func parseResults(out string, results map[string]string) {
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "--- "); ok {
			result, name, _ := strings.Cut(rest, ": ")
			name, _, _ = strings.Cut(name, " ")
			results[name] = result
		}
	}
}

// mustPass fails the test for each of names that has not passed.
func mustPass(t *testing.T, names []string, results map[string]string) {
	t.Helper()
	passed := 0
	for _, name := range names {
		switch result := results[name]; result {
		case "PASS":
			passed++
		case "":
			t.Errorf("%s was not run", name)
		default:
			t.Errorf("%s: %s", name, result)
		}
	}
	t.Logf("%d of %d tests of the SDK passed", passed, len(names))
}

// output runs a command and returns its standard output.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}
