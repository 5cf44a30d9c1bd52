package testdocker

import "testing"

// A sandbox of another program that comes or goes during the tests changes no bystander.
func TestABystanderIsTheSameBesideOtherSandboxes(t *testing.T) {
	const alone = `{"id":"kept"}`
	for _, listed := range []string{alone, alone + "\n" + `{"id":"other"}`, `{"id":"other"}` + "\n" + alone} {
		if got := lineOf(listed, "kept"); got != alone {
			t.Errorf("in %q it is %q, want %q", listed, got, alone)
		}
	}
	if got := lineOf(`{"id":"other"}`, "kept"); got != "" {
		t.Errorf("a sandbox that is gone is listed: %q", got)
	}
}
