package gemini

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

func TestRecipeInstallsWhatTheTestsRun(t *testing.T) {
	data, err := os.ReadFile("../../../../e2e/agents/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var installed struct {
		Dependencies map[string]string `json:"dependencies"`
	}
	if err := json.Unmarshal(data, &installed); err != nil {
		t.Fatal(err)
	}
	want := []string{npmPackage + "@" + installed.Dependencies[npmPackage]}
	if got := (Driver{}).Recipe().NPM; !slices.Equal(got, want) {
		t.Errorf("the recipe installs %v, the tests run %v", got, want)
	}
}
