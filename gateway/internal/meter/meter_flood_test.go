//go:build !race

package meter_test

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// repeat returns a reader of text, repeated the given number of times.
func repeat(text string, times int) io.Reader {
	list := make([]io.Reader, times)
	for i := range list {
		list[i] = strings.NewReader(text)
	}
	return io.MultiReader(list...)
}

// An agent must not be able to hide its usage behind a large answer. For example, the last
// event of a Responses stream repeats the instructions of the request before the usage.
func TestFloodOfAnAnswerHidesNoUsageAndTakesLittleMemory(t *testing.T) { // not parallel: it measures memory
	const size = 64
	filler := strings.Repeat(`a\"{\\`, 1<<20/6)
	for name, c := range map[string]struct {
		api         runnerscripts.ModelAPI
		start, stop string
	}{
		"JSON":       {openai, `{"model":"gpt-5","output":[{"text":"`, `"}],"usage":{"input_tokens":7,"output_tokens":9}}`},
		"usage last": {openai, `{"usage":{"input_tokens":7,"output_tokens":9},"model":"gpt-5","output":[{"text":"`, `"}]}`},
		"an event":   {openai, `data: {"response":{"model":"gpt-5","instructions":"`, `","usage":{"input_tokens":7,"output_tokens":9}}}` + "\n\n"},
		"a key":      {openai, `{"model":"gpt-5","`, `":1,"usage":{"input_tokens":7,"output_tokens":9}}`},
		"a comment":  {openai, `: `, "\n" + `data: {"model":"gpt-5","usage":{"input_tokens":7,"output_tokens":9}}`},
		"a model":    {openai, `{"model":"`, `","model":"gpt-5","usage":{"input_tokens":7,"output_tokens":9}}`},
		"a usage":    {openai, `{"model":"gpt-5","usage":{"a":"`, `"},"usage":{"input_tokens":7,"output_tokens":9}}`},
	} {
		var got meter.Usage
		var exact bool
		body := io.MultiReader(strings.NewReader(c.start), repeat(filler, size), strings.NewReader(c.stop))
		resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(body)}
		w := meter.Watch(c.api, resp, func(u meter.Usage, e bool) { got, exact = u, e })
		buffer := make([]byte, 32<<10)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, w, buffer)
		runtime.ReadMemStats(&after)
		if want := int64(len(c.start) + size*len(filler) + len(c.stop)); err != nil || n != want {
			t.Errorf("%s: %d of %d bytes, %v", name, n, want, err)
		}
		if got != usage("gpt-5", 7, 9, 0, 0) || !exact {
			t.Errorf("%s: %+v, %v", name, got, exact)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: %d bytes of memory", name, used)
		}
	}
}
