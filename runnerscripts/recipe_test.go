package runnerscripts

import "testing"

func TestAVersionBelowTheMinimumIsTooOld(t *testing.T) {
	r := Recipe{Minimum: "2.1.250"}
	for version, want := range map[string]bool{
		"2.1.197": true, "2.1.249 (Claude Code)": true, "2.0.999": true, "1.99": true, "2.1": true, "2.1.250-beta": false,
		"2.1.250": false, "2.1.1000": false, "2.10.0": false, "3.0": false, "codex-cli 2.2": false, "unknown": false, "": false,
	} {
		if got := r.TooOld(version); got != want {
			t.Errorf("%q is too old: %v", version, got)
		}
	}
	if (Recipe{}).TooOld("0.0.1") || (Recipe{Minimum: "1.0.0"}).TooOld("1.0") {
		t.Error("a version is too old for no minimum, or for one with zeros")
	}
}
