package meter_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	anthropic = runnerscripts.APIAnthropic
	openai    = runnerscripts.APIOpenAI
	gemini    = runnerscripts.APIGemini
)

// usage returns the usage of a call: input without cached tokens, output, cache read, cache
// write.
func usage(model string, in, out, read, write int64) meter.Usage {
	return meter.Usage{Model: model, Usage: runnerscripts.Usage{InputTokens: in, OutputTokens: out, CacheReadTokens: read, CacheWriteTokens: write}}
}

// result is the outcome of a watched answer.
type result struct {
	usage meter.Usage
	exact bool
	body  []byte
	err   error
	calls int
}

// watch reads an answer to EOF and closes it.
func watch(api runnerscripts.ModelAPI, body io.Reader) result {
	var r result
	resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(body)}
	w := meter.Watch(api, resp, func(u meter.Usage, exact bool) { r.usage, r.exact, r.calls = u, exact, r.calls+1 })
	r.body, r.err = io.ReadAll(w)
	r.err = errors.Join(r.err, w.Close())
	return r
}

// parts is a reader that returns one part per Read.
type parts [][]byte

func (p *parts) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	return n, nil
}

func check(t *testing.T, how string, r result, body string, want meter.Usage, exact bool) {
	t.Helper()
	if r.usage != want || r.exact != exact || r.calls != 1 || r.err != nil {
		t.Fatalf("%s: %+v, %v; done called %d times; %v; want %+v, %v", how, r.usage, r.exact, r.calls, r.err, want, exact)
	}
	if string(r.body) != body {
		t.Fatalf("%s: read %q", how, r.body)
	}
}

func TestTheUsageIsThatOfTheAnswerHoweverItIsRead(t *testing.T) {
	t.Parallel()
	for _, a := range answers() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			check(t, "whole", watch(a.api, strings.NewReader(a.body)), a.body, a.want, a.exact)
			check(t, "byte by byte", watch(a.api, iotest.OneByteReader(strings.NewReader(a.body))), a.body, a.want, a.exact)
			check(t, "end with data", watch(a.api, iotest.DataErrReader(strings.NewReader(a.body))), a.body, a.want, a.exact)
			for i := 1; i < len(a.body); i++ {
				split := parts{[]byte(a.body[:i]), []byte(a.body[i:])}
				check(t, fmt.Sprintf("split at %d", i), watch(a.api, &split), a.body, a.want, a.exact)
			}
		})
	}
}

func TestOneReaderKeepsTheContractOfReaders(t *testing.T) {
	t.Parallel()
	for _, a := range answers() {
		resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body))}
		if err := iotest.TestReader(meter.Watch(a.api, resp, func(meter.Usage, bool) {}), []byte(a.body)); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}

// The usage reported before the cut counts, whether the cut is an error, an EOF or a close.
func TestACutAnswerTellsWhatItHasTold(t *testing.T) {
	t.Parallel()
	start := messageStart + "\n"
	want := usage("claude-opus-4-1-20250805", 12, 1, 15000, 40)
	broken := errors.New("cut")
	r := watch(anthropic, io.MultiReader(strings.NewReader(start+`data: {"type":"message_de`), iotest.ErrReader(broken)))
	if r.usage != want || r.exact || r.calls != 1 || !errors.Is(r.err, broken) {
		t.Errorf("error: %+v", r)
	}
	check(t, "end", watch(anthropic, strings.NewReader(start+"event: mess")), start+"event: mess", want, false)

	var calls int
	var got meter.Usage
	var exact bool
	resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(start + messageDelta))}
	w := meter.Watch(anthropic, resp, func(u meter.Usage, e bool) { got, exact, calls = u, e, calls+1 })
	if _, err := io.ReadFull(w, make([]byte, len(start))); err != nil {
		t.Fatal(err)
	}
	if calls != 0 {
		t.Error("done is called before the end")
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := io.ReadAll(w); err != nil {
		t.Error(err)
	}
	if got != want || exact || calls != 1 {
		t.Errorf("close: %+v; done called %d times", got, calls)
	}
}

// An agent that does not read on after the last usage has all of it, but with Gemini nobody knows
// which is the last.
func TestWhatIsClosedAfterItsUsageIsExact(t *testing.T) {
	t.Parallel()
	for _, a := range answers() {
		var exact bool
		resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body))}
		w := meter.Watch(a.api, resp, func(_ meter.Usage, e bool) { exact = e })
		if _, err := io.ReadFull(w, make([]byte, len(a.body))); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if want := a.exact && a.api != gemini; exact != want && a.body != "" {
			t.Errorf("%s: exact %v", a.name, exact)
		}
	}
}

// closed is a body that records its Close, which fails.
type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return io.ErrClosedPipe
}

func TestCloseClosesTheBody(t *testing.T) {
	t.Parallel()
	body := &closed{Reader: strings.NewReader("{}")}
	w := meter.Watch(openai, &http.Response{Header: http.Header{}, Body: body}, func(meter.Usage, bool) {})
	if err := w.Close(); !errors.Is(err, io.ErrClosedPipe) || !body.closed {
		t.Errorf("%v, closed %v", err, body.closed)
	}
}

func TestAnEncodedAnswerHasNoUsage(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","usage":{"input_tokens":1,"output_tokens":2}}`
	for encoding, want := range map[string]bool{"": true, "identity": true, "Identity": true, "gzip": false, "br": false} {
		resp := &http.Response{Header: http.Header{"Content-Encoding": {encoding}}, Body: io.NopCloser(strings.NewReader(body))}
		calls, got := 0, false
		data, err := io.ReadAll(meter.Watch(anthropic, resp, func(_ meter.Usage, exact bool) { calls, got = calls+1, exact }))
		if err != nil || string(data) != body || calls != 1 || got != want {
			t.Errorf("%q: exact %v, %d calls, %q, %v", encoding, got, calls, data, err)
		}
	}
}

// FuzzWatch checks that, for any answer split anywhere, the bytes are passed on, done is called
// once, and the usage is the same.
func FuzzWatch(f *testing.F) {
	apis := []runnerscripts.ModelAPI{anthropic, openai, gemini}
	for _, a := range answers() {
		for i, api := range apis {
			if api == a.api {
				f.Add([]byte(a.body), uint8(i), uint16(len(a.body)/2))
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, which uint8, at uint16) {
		api := apis[int(which)%len(apis)]
		whole := watch(api, bytes.NewReader(body))
		i := int(at) % (len(body) + 1)
		split := parts{body[:i], body[i:]}
		for how, r := range map[string]result{
			"whole": whole, "split": watch(api, &split), "bytes": watch(api, iotest.OneByteReader(bytes.NewReader(body))),
		} {
			check(t, how, r, string(body), whole.usage, whole.exact)
		}
		u := whole.usage
		for _, n := range []int64{u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens} {
			if n < 0 {
				t.Errorf("negative: %+v", u)
			}
		}
	})
}

// BenchmarkWatch compares reading an answer of 1 MiB with and without Watch. Gemini reports its
// usage in each event.
func BenchmarkWatch(b *testing.B) {
	streams := map[string]string{
		"anthropic": messageStart + "\n" + strings.Repeat(textDelta+"\n", 1<<20/len(textDelta)) + messageDelta,
		"gemini":    strings.Repeat(geminiEvent, 1<<20/len(geminiEvent)),
		"openai":    `{"model":"gpt-5","output":[{"text":"` + strings.Repeat("text ", 1<<20/5) + `"}],"usage":{"input_tokens":1}}`,
	}
	for name, stream := range streams {
		for _, watched := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/watched=%v", name, watched), func(b *testing.B) {
				b.SetBytes(int64(len(stream)))
				b.ReportAllocs()
				buffer := make([]byte, 32<<10)
				for b.Loop() {
					body := io.NopCloser(strings.NewReader(stream))
					if watched {
						body = meter.Watch(runnerscripts.ModelAPI(name), &http.Response{Header: http.Header{}, Body: body}, func(meter.Usage, bool) {})
					}
					if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{body}, buffer); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
