package docker

import "testing"

// FuzzLabels parses labels that another program wrote on a container or an image.
func FuzzLabels(f *testing.F) {
	f.Add(`{"image":"x","memory":"2GiB","mounts":[{"source":"/a","target":"/b"}]}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, label string) {
		cfg := configOf(map[string]string{labelConfig: label})
		again := configOf(map[string]string{labelConfig: describeConfig(cfg)})
		if describeConfig(again) != describeConfig(cfg) {
			t.Errorf("%q became %q", describeConfig(cfg), describeConfig(again))
		}
	})
}
