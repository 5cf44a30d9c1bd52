package primitives_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestSizesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]primitives.Size{
		"0": 0, "4096": 4096, "1b": 1, "1k": 1 << 10, "1KB": 1 << 10, "1KiB": 1 << 10, "512m": 512 << 20, "512 MiB": 512 << 20,
		"2g": 2 << 30, "2GB": 2 << 30, "1.5g": 3 << 29, "1t": 1 << 40, "none": primitives.NoSize,
	} {
		if got, err := primitives.ParseSize(text); got != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "lots", "m", "-1", "-1m", "+1", "1x", "1mm", "1bb", "1bib", "1mi", "1e3", "0x10", "1_0", "inf", "nan", "1 2", "m1", "9999999t", "1,5g",
	} {
		if got, err := primitives.ParseSize(text); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q is %d, %v; want fs.ErrInvalid", text, got, err)
		}
	}
}

func TestSizesInConfigurationsAreNumbersOrTexts(t *testing.T) {
	for text, want := range map[string]primitives.Size{`"2g"`: 2 << 30, `1024`: 1024, `-1`: -1, `"none"`: -1, `null`: 0} {
		var got primitives.Size
		if err := json.Unmarshal([]byte(text), &got); got != want || err != nil {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{`"lots"`, `1.5`, `true`, `[1]`, `1e30`} {
		var got primitives.Size
		if err := json.Unmarshal([]byte(text), &got); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s is %d, %v; want fs.ErrInvalid", text, got, err)
		}
	}
	if b, err := json.Marshal(primitives.Size(5)); string(b) != "5" || err != nil {
		t.Errorf("5 is written %s, %v", b, err)
	}
}
