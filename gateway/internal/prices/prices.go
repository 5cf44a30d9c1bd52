// Package prices computes the cost of a model's tokens from a table in prices.json.
package prices

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Price is the price of a model's tokens, in US dollars per million. A cache price of zero
// means the price of input.
type Price struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read,omitempty"`
	CacheWrite float64 `json:"cache_write,omitempty"`
	// CacheWriteHour is the price of writes to the one-hour cache; zero means CacheWrite.
	CacheWriteHour float64 `json:"cache_write_hour,omitempty"`

	// long has the prices of a call with more than over input tokens; nil means the same
	// prices.
	long *Price
	over int64
}

// Cost returns the cost of one call in US dollars; hour is how many of the cache write tokens
// go to the one-hour cache. The usage must be that of one call, not a sum of calls: some models
// charge more for a long input.
func (p Price) Cost(u runnerscripts.Usage, hour int64) float64 {
	hour = min(hour, u.CacheWriteTokens)
	if p.long != nil && u.TotalInput() > p.over {
		p = *p.long
	}
	write := cmp.Or(p.CacheWrite, p.Input)
	return (float64(u.InputTokens)*p.Input +
		float64(u.OutputTokens)*p.Output +
		float64(u.CacheReadTokens)*cmp.Or(p.CacheRead, p.Input) +
		float64(u.CacheWriteTokens-hour)*write +
		float64(hour)*cmp.Or(p.CacheWriteHour, write)) / 1e6
}

// Of returns the price of a model: own first, then the table. The name may end with a date, as
// in answers, or start with the name of the API or the vendor. Ok is false if no price is
// known.
func Of(own map[string]Price, model string) (p Price, ok bool) {
	for _, list := range []map[string]Price{own, table().models} {
		for _, name := range names(model) {
			if p, ok := list[name]; ok {
				return p, true
			}
		}
	}
	return Price{}, false
}

// AsOf returns the date of the table in the form 2006-01-02. Every price was checked on or
// after that date.
func AsOf() string { return table().asOf }

// datePattern is the date at the end of a model's name.
var datePattern = regexp.MustCompile(`-20\d\d(-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])|(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]))$`)

// names returns the names under which a model may have its price, the exact one first.
func names(model string) []string {
	bare := model
	for _, prefix := range []string{"models/", "anthropic/", "openai/", "google/", "gemini/"} {
		if rest, ok := strings.CutPrefix(model, prefix); ok {
			bare = rest
		}
	}
	return []string{model, datePattern.ReplaceAllString(model, ""), bare, datePattern.ReplaceAllString(bare, "")}
}

//go:embed prices.json
var data []byte

type prices struct {
	asOf   string
	models map[string]Price
}

// table returns the prices of prices.json.
var table = sync.OnceValue(func() prices {
	var file struct {
		AsOf   string `json:"as_of"`
		Models map[string]struct {
			Price
			Long *struct {
				Price
				Over int64 `json:"over"`
			} `json:"long"`
		} `json:"models"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		panic("prices.json: " + err.Error()) // cannot happen: a test parses the file
	}
	t := prices{asOf: file.AsOf, models: map[string]Price{}}
	for name, m := range file.Models {
		if m.Long != nil {
			m.long, m.over = &m.Long.Price, m.Long.Over
		}
		t.models[name] = m.Price
	}
	return t
})
