package prices

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAModelHasItsOwnPriceAndNoOther(t *testing.T) {
	t.Parallel()
	models := table().models
	for name, want := range map[string]string{
		"claude-opus-4-1":              "claude-opus-4-1",
		"claude-opus-4-1-20250805":     "claude-opus-4-1",
		"claude-sonnet-4-5-20250929":   "claude-sonnet-4-5",
		"claude-sonnet-4-20250514":     "claude-sonnet-4",
		"anthropic/claude-haiku-4-5":   "claude-haiku-4-5",
		"gpt-5":                        "gpt-5",
		"gpt-5-2025-08-07":             "gpt-5",
		"gpt-5-mini":                   "gpt-5-mini",
		"gpt-5-mini-2025-08-07":        "gpt-5-mini",
		"openai/gpt-4.1-2025-04-14":    "gpt-4.1",
		"gpt-4o-2024-05-13":            "gpt-4o-2024-05-13",
		"gpt-4o-2024-08-06":            "gpt-4o",
		"models/gemini-2.5-pro":        "gemini-2.5-pro",
		"google/gemini-2.5-flash":      "gemini-2.5-flash",
		"gemini/gemini-2.5-flash-lite": "gemini-2.5-flash-lite",
	} {
		if p, ok := Of(nil, name); !ok || p != models[want] || p == (Price{}) {
			t.Errorf("%s: %+v, %v; want that of %s", name, p, ok, want)
		}
	}
	for _, name := range []string{
		"", "gpt", "gpt-5-", "gpt-5-giant", "gpt-5-2025", "gpt-5-2025-08", "gpt-5-2025-13-07", "gpt-5-2025-08-32", "gpt-5-20251301", "gpt-5-1025-08-07",
		"gpt-5-2025-08-07-x", "gpt-5-2025-08-07-2025-08-07", "gpt-5-2025-0807", "gpt-5-202508077", "gpt-5_2025-08-07", "gpt-52025-08-07",
		"claude-sonnet", "xclaude-opus-4-1", "other/gpt-5", "openai/other/gpt-5", "models/models/gemini-2.5-pro", "models/", "-20250805", "GPT-5",
	} {
		if p, ok := Of(nil, name); ok {
			t.Errorf("%q has the price %+v", name, p)
		}
	}
}

func TestAnOwnPriceComesFirst(t *testing.T) {
	t.Parallel()
	own := map[string]Price{
		"gpt-5": {Input: 1}, "gpt-5-2025-08-07": {Input: 2}, "local": {Output: 3}, "free": {}, "openai/gpt-5-mini": {Input: 4},
	}
	for name, want := range map[string]Price{
		"gpt-5": own["gpt-5"], "gpt-5-2025-08-07": own["gpt-5-2025-08-07"], "gpt-5-2026-01-01": own["gpt-5"], "openai/gpt-5": own["gpt-5"],
		"local": own["local"], "local-20260101": own["local"], "free": {}, "openai/gpt-5-mini": own["openai/gpt-5-mini"], "gpt-5-mini": table().models["gpt-5-mini"],
	} {
		if p, ok := Of(own, name); !ok || p != want {
			t.Errorf("%s: %+v, %v; want %+v", name, p, ok, want)
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestCost(t *testing.T) {
	t.Parallel()
	u := runnerscripts.Usage{InputTokens: 1_000_000, OutputTokens: 100_000, CacheReadTokens: 10_000_000, CacheWriteTokens: 1000, CostUSD: 99}
	for _, c := range []struct {
		price Price
		want  float64
	}{
		{Price{Input: 15, Output: 75, CacheRead: 1.5, CacheWrite: 18.75}, 15 + 7.5 + 15 + 0.01875},
		{Price{CacheWrite: 1000, CacheWriteHour: 2000}, 0.6 + 0.8},
		{Price{Input: 3, Output: 10}, 3 + 1 + 30 + 0.003},
		{Price{Output: 10}, 1},
		{Price{}, 0},
		{Price{Input: 1, Output: 1, CacheRead: 1, CacheWrite: 1, over: 1, long: &Price{Input: 2, Output: 4, CacheRead: 1}}, 2 + 0.4 + 10 + 0.002},
	} {
		if got := c.price.Cost(u, 400); !near(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.price, got, c.want)
		}
	}
}

// Cached tokens count for the length of the input, too.
func TestALongInputIsDearer(t *testing.T) {
	t.Parallel()
	p, _ := Of(nil, "gemini-2.5-pro")
	short := runnerscripts.Usage{InputTokens: 50_000, CacheReadTokens: 150_000, OutputTokens: 1_000_000}
	if got, want := p.Cost(short, 0), 0.05*1.25+0.15*0.125+10; !near(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	long := short
	long.InputTokens++
	if got, want := p.Cost(long, 0), 0.050001*2.5+0.15*0.25+15; !near(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestTheTableIsValid(t *testing.T) {
	t.Parallel()
	type price struct {
		Input      float64  `json:"input"`
		Output     float64  `json:"output"`
		CacheRead  *float64 `json:"cache_read"`
		CacheWrite *float64 `json:"cache_write"`
		CacheHour  *float64 `json:"cache_write_hour"`
	}
	type long struct {
		price
		Over int64 `json:"over"`
	}
	var file struct {
		AsOf   string   `json:"as_of"`
		Source []string `json:"source"`
		Models map[string]struct {
			price
			Long *long `json:"long"`
		} `json:"models"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if day, err := time.Parse(time.DateOnly, AsOf()); err != nil || day.After(time.Now()) || AsOf() != file.AsOf {
		t.Errorf("as_of %q, %v", AsOf(), err)
	}
	if len(file.Source) == 0 {
		t.Error("no source")
	}
	if n := bytes.Count(data, []byte(`": {"input": `)); n != len(file.Models) {
		t.Errorf("%d prices for %d names", n, len(file.Models))
	}
	for name, m := range file.Models {
		valid := func(p price, kind string) {
			if p.Input <= 0 || p.Output < p.Input || p.Output > 1000 {
				t.Errorf("%s%s: input %v, output %v", name, kind, p.Input, p.Output)
			}
			if p.CacheRead != nil && (*p.CacheRead <= 0 || *p.CacheRead > p.Input) {
				t.Errorf("%s%s: cache_read %v", name, kind, *p.CacheRead)
			}
			if p.CacheHour != nil && (p.CacheWrite == nil || *p.CacheHour < *p.CacheWrite || *p.CacheHour > 2*p.Input) {
				t.Errorf("%s%s: cache_write_hour %v", name, kind, *p.CacheHour)
			}
			if p.CacheWrite != nil && (*p.CacheWrite < p.Input || *p.CacheWrite > 2*p.Input) {
				t.Errorf("%s%s: cache_write %v", name, kind, *p.CacheWrite)
			}
		}
		valid(m.price, "")
		got := table().models[name]
		if got.Input != m.Input || got.Output != m.Output || got.long == nil != (m.Long == nil) {
			t.Errorf("%s: read as %+v", name, got)
		}
		if l := m.Long; l != nil {
			valid(l.price, " long")
			if l.Over < 100_000 || l.Input <= m.Input || l.Output <= m.Output || (l.CacheRead == nil) != (m.CacheRead == nil) || (l.CacheWrite == nil) != (m.CacheWrite == nil) {
				t.Errorf("%s: long %+v", name, l)
			}
			if got.over != l.Over || got.long.Input != l.Input || got.long.Output != l.Output {
				t.Errorf("%s: long is read as %+v", name, got.long)
			}
		}
		if n := names(name); strings.ToLower(name) != name || n[0] != n[2] || n[0] != n[1] && !slices.Contains([]string{"gpt-4o-2024-05-13"}, name) {
			t.Errorf("%s: a name with a date or a vendor's name, or capitals", name)
		}
	}
}
