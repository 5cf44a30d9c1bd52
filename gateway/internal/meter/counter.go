package meter

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// counter sums the usage in the values of an answer.
type counter struct {
	api   runnerscripts.ModelAPI
	usage Usage
	found bool
	last  bool // the usage is that of the whole answer

	// The fields below describe the current event. Its model counts only if the event reports
	// usage: most events without usage are skipped unread.
	model string
	told  bool
}

// value processes a value that a [picker] has found; inner says that it is in a message or
// response.
func (c *counter) value(key string, value []byte, inner bool) {
	gemini := key == "usageMetadata" || key == "modelVersion"
	if gemini != (c.api == runnerscripts.APIGemini) {
		return
	}
	if key == "model" || key == "modelVersion" {
		if err := json.Unmarshal(value, &c.model); err != nil {
			c.model = ""
		}
		return
	}
	var w wire
	err := json.Unmarshal(value, &w)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); err != nil && !other {
		return // a field of an unexpected type must not invalidate the others
	}
	if w.told() {
		c.told, c.found = true, true
		// The message with which Anthropic starts a stream tells the input only.
		c.last = c.last || c.api == runnerscripts.APIOpenAI || c.api == runnerscripts.APIAnthropic && !inner
		c.usage.Usage = w.usage(c.api, c.usage.Usage)
		c.usage.HourWriteTokens = max(c.usage.HourWriteTokens, w.hour())
	}
}

// exact reports whether the usage is that of the whole answer. Gemini reports it with each part,
// so that only the end of the answer tells.
func (c *counter) exact(whole bool) bool {
	return c.last || c.api == runnerscripts.APIGemini && c.found && whole
}

// commit ends an event.
func (c *counter) commit() {
	if c.told && c.model != "" {
		c.usage.Model = c.model
	}
	c.model, c.told = "", false
}

// wire is the union of the usage objects of all APIs.
type wire struct {
	// Anthropic Messages and OpenAI Responses. The input includes the cached tokens
	// for OpenAI only.
	Input      tokens `json:"input_tokens"`
	Output     tokens `json:"output_tokens"`
	CacheWrite tokens `json:"cache_creation_input_tokens"`
	CacheRead  tokens `json:"cache_read_input_tokens"`
	Written    struct {
		Hour tokens `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	// Iterations are the parts into which Anthropic has divided a call, such as the part that
	// summarizes a long conversation. The fields above do not include that part.
	Iterations   []wire  `json:"iterations"`
	InputDetails details `json:"input_tokens_details"`

	// OpenAI Chat Completions.
	Prompt        tokens  `json:"prompt_tokens"`
	Completion    tokens  `json:"completion_tokens"`
	PromptDetails details `json:"prompt_tokens_details"`

	// Gemini.
	PromptCount     tokens `json:"promptTokenCount"`
	CachedCount     tokens `json:"cachedContentTokenCount"`
	CandidatesCount tokens `json:"candidatesTokenCount"`
	ThoughtsCount   tokens `json:"thoughtsTokenCount"`
	ToolCount       tokens `json:"toolUsePromptTokenCount"`
}

// details are the parts of OpenAI's input.
type details struct {
	Cached  tokens `json:"cached_tokens"`
	Written tokens `json:"cache_write_tokens"`
}

// told reports whether any count is present.
func (w wire) told() bool {
	for _, t := range []tokens{
		w.Input, w.Output, w.CacheWrite, w.CacheRead, w.Prompt, w.Completion,
		w.PromptCount, w.CachedCount, w.CandidatesCount, w.ThoughtsCount, w.ToolCount,
	} {
		if t.told {
			return true
		}
	}
	return false
}

// usage returns the usage of a call; before is the usage from its earlier events.
func (w wire) usage(api runnerscripts.ModelAPI, before runnerscripts.Usage) runnerscripts.Usage {
	switch {
	case api == runnerscripts.APIAnthropic:
		var sum runnerscripts.Usage
		for _, part := range w.Iterations {
			sum = sum.Add(part.own())
		}
		// Later events repeat the counts of earlier ones, but may omit some.
		return larger(before, larger(w.own(), sum))
	case api == runnerscripts.APIGemini:
		return split(w.PromptCount.n+w.ToolCount.n, w.CandidatesCount.n+w.ThoughtsCount.n, details{Cached: w.CachedCount})
	case w.Prompt.told || w.Completion.told:
		return split(w.Prompt.n, w.Completion.n, w.PromptDetails)
	default:
		return split(w.Input.n, w.Output.n, w.InputDetails)
	}
}

// own returns Anthropic's counts without the iterations.
func (w wire) own() runnerscripts.Usage {
	return runnerscripts.Usage{
		InputTokens: w.Input.n, OutputTokens: w.Output.n,
		CacheReadTokens: w.CacheRead.n, CacheWriteTokens: w.CacheWrite.n,
	}
}

// hour returns how many tokens all iterations write to the one-hour cache.
func (w wire) hour() int64 {
	var sum int64
	for _, part := range w.Iterations {
		sum += part.Written.Hour.n
	}
	return max(sum, w.Written.Hour.n)
}

// split subtracts the cached tokens from the input.
func split(input, output int64, d details) runnerscripts.Usage {
	return runnerscripts.Usage{
		InputTokens: max(input-d.Cached.n-d.Written.n, 0), OutputTokens: output,
		CacheReadTokens: d.Cached.n, CacheWriteTokens: d.Written.n,
	}
}

// larger returns the larger one of each count.
func larger(a, b runnerscripts.Usage) runnerscripts.Usage {
	return runnerscripts.Usage{
		InputTokens:      max(a.InputTokens, b.InputTokens),
		OutputTokens:     max(a.OutputTokens, b.OutputTokens),
		CacheReadTokens:  max(a.CacheReadTokens, b.CacheReadTokens),
		CacheWriteTokens: max(a.CacheWriteTokens, b.CacheWriteTokens),
	}
}

// maxTokens is an upper bound on the tokens of one call.
const maxTokens = 1_000_000_000

// tokens is a token count that may be absent.
type tokens struct {
	n    int64 // zero if the number is negative or more than maxTokens
	told bool  // a number is present
}

// UnmarshalJSON accepts any value; a value that is not a number counts as absent.
func (t *tokens) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseFloat(string(data), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil
	}
	t.told = true
	if n >= 0 && n <= maxTokens {
		t.n = int64(n)
	}
	return nil
}
