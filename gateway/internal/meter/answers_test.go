package meter_test

import (
	"strings"

	"github.com/agentenv-dev/agentenv/gateway/internal/meter"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// answer is an answer of a model's API and the usage that it reports.
type answer struct {
	name  string
	api   runnerscripts.ModelAPI
	body  string
	want  meter.Usage
	exact bool
}

const (
	messageStart = `event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-opus-4-1-20250805","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":40,"cache_read_input_tokens":15000,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}
`
	textDelta = `event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" of the tokens"}}
`
	messageDelta = `event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":77}}
`
	geminiEvent = `data: {"candidates": [{"content": {"parts": [{"text": "some words"}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 9040,"cachedContentTokenCount": 8000,"candidatesTokenCount": 5,"totalTokenCount": 9057,"thoughtsTokenCount": 12},"modelVersion": "gemini-2.5-pro"}` + "\r\n\r\n"
	geminiLast  = `{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9040,"cachedContentTokenCount":8000,"candidatesTokenCount":21,"thoughtsTokenCount":30,"toolUsePromptTokenCount":7,"totalTokenCount":9098,"promptTokensDetails":[{"modality":"TEXT","tokenCount":9040}]},"modelVersion":"gemini-2.5-pro"}`
	chatPart    = `data: {"id":"c","object":"chat.completion.chunk","model":"gpt-4.1-2025-04-14","choices":[{"index":0,"delta":{"content":"a \"usage\": {\"prompt_tokens\":5}"},"finish_reason":null}],"usage":null}` + "\n\n"
	chatLast    = `data: {"id":"c","object":"chat.completion.chunk","model":"gpt-4.1-2025-04-14","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":9,"total_tokens":109,"prompt_tokens_details":{"cached_tokens":60,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":4}}}` + "\n\n"
	responses   = `{"id":"resp_1","object":"response","status":"completed","model":"gpt-5-codex","instructions":"be brief","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]},{"type":"function_call","arguments":"{\"usage\":{\"input_tokens\":1}}","usage":{"input_tokens":99}}],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":4},"total_tokens":109},"user":null}`
	created     = "event: response.created\n" + `data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","model":"gpt-5","usage":null}}` + "\n\n"
)

func answers() []answer {
	list := append(anthropicAnswers(), openaiAnswers()...)
	return append(append(list, geminiAnswers()...), withoutUsage()...)
}

func anthropicAnswers() []answer {
	const message = `{"model":"claude-sonnet-4-5-20250929","id":"msg_1","content":[{"type":"tool_use","input":{"usage":{"input_tokens":5},"model":"no"}}],` +
		`"usage":{"input_tokens":12,"cache_creation_input_tokens":40,"cache_read_input_tokens":15000,"output_tokens":33}}`
	stream := messageStart + "\n" + "event: ping\ndata: {\"type\": \"ping\"}\n\n" + textDelta + "\n" + messageDelta + "\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	opus := usage("claude-opus-4-1-20250805", 12, 77, 15000, 40)
	lines := strings.NewReplacer(`{"type":"message_delta",`, "{\ndata:\"type\":\"message_delta\",\ndata:  ", `"usage":{`, "\"usage\"\ndata: :{\ndata: ").Replace(messageDelta)
	return []answer{
		{"anthropic/message", anthropic, message, usage("claude-sonnet-4-5-20250929", 12, 33, 15000, 40), true},
		{"anthropic/stream", anthropic, stream, opus, true},
		{"anthropic/CRLF", anthropic, strings.ReplaceAll(stream, "\n", "\r\n"), opus, true},
		{"anthropic/no final blank line", anthropic, messageStart + "\n" + strings.TrimSuffix(messageDelta, "\n"), opus, true},
		{"anthropic/comments", anthropic, ": it's \"odd\n\n:\n" + messageStart + ": {\n\nid: 1\nretry: 3\n" + messageDelta + "\n", opus, true},
		{"anthropic/data of many lines", anthropic, messageStart + "\n" + lines + "\n", opus, true},
		{"anthropic/no space after data", anthropic, strings.ReplaceAll(stream, "data: ", "data:"), opus, true},
		{"anthropic/white space first", anthropic, "\uFEFF\r\n" + stream, opus, true},
		{"anthropic/delta repeats the input", anthropic, messageStart + "\n" +
			`data: {"type":"message_delta","usage":{"input_tokens":50,"cache_read_input_tokens":0,"output_tokens":60}}` + "\n\n" +
			`data: {"type":"message_delta","usage":{"output_tokens":70}}` + "\n\n", usage("claude-opus-4-1-20250805", 50, 70, 15000, 40), true},
		{"anthropic/an event that is no JSON", anthropic, messageStart + "\ndata: {\"usage\":{\"output_tokens\":[[\"\n\n" + messageDelta, opus, true},
		{"anthropic/an event that is no JSON, CRLF", anthropic, strings.ReplaceAll(messageStart+"\ndata: {\"usage\":{\"output_tokens\":[[\"\n\n"+messageDelta, "\n", "\r\n"), opus, true},
		{"anthropic/a model in an event without usage", anthropic, "data: {\"model\":\"a\"}\n\n" + messageStart + "\ndata: {\"model\":\"b\"}\n\n" + messageDelta + "\ndata: {\"model\":\"c\"}\n\n", opus, true},
		{"anthropic/a number without end", anthropic, `{"usage":{"output_tokens":1e999}}`, meter.Usage{}, true},
		{
			"anthropic/compaction", anthropic, `{"model":"claude-opus-4-6","usage":{"input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":5,` +
				`"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":23000,"output_tokens":1000}]}}`,
			usage("claude-opus-4-6", 203000, 4500, 5, 0), true,
		},
		{
			"anthropic/caches of an hour", anthropic, `{"model":"m","usage":{"input_tokens":1,"output_tokens":2,"cache_creation_input_tokens":40,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":30}}}`,
			meter.Usage{Model: "m", Usage: usage("", 1, 2, 0, 40).Usage, HourWriteTokens: 30},
			true,
		},
		{"anthropic/absurd numbers", anthropic, `{"model":"m","usage":{"input_tokens":-5,"output_tokens":1e300,"cache_read_input_tokens":1e999,"cache_creation_input_tokens":12.0}}`, usage("m", 0, 0, 0, 12), true},
		{"anthropic/other types", anthropic, `{"model":7,"usage":{"input_tokens":"5","output_tokens":3,"iterations":4,"input_tokens_details":[],"cache_read_input_tokens":null}}`, usage("", 0, 3, 0, 0), true},
		{"anthropic/escapes", anthropic, `{"mod\u0065l":"no","model":"a\"\\\u00e9","text":"\\","usage" : {"x":"}\"","output_tokens":3 } }`, usage("a\"\\\u00e9", 0, 3, 0, 0), true},
	}
}

func openaiAnswers() []answer {
	want := usage("gpt-5-codex", 40, 9, 60, 0)
	end := func(kind string) string {
		return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\",\"response\":" + responses + "}\n\n"
	}
	chat := `{"id":"c","object":"chat.completion","model":"gpt-4.1-2025-04-14","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":60}}}`
	return []answer{
		{"responses/JSON", openai, responses, want, true},
		{"responses/stream", openai, created + end("response.completed"), want, true},
		{"responses/incomplete", openai, created + end("response.incomplete"), want, true},
		{"responses/failed", openai, created + end("response.failed"), want, true},
		{"responses/pretty", openai, strings.ReplaceAll(strings.ReplaceAll(responses, ":", " :\n\t"), ",", "\n ,\t"), want, true},
		{"responses/cache write", openai, `{"model":"gpt-5.6","usage":{"input_tokens":5000,"input_tokens_details":{"cached_tokens":1000,"cache_write_tokens":3207},"output_tokens":2}}`, usage("gpt-5.6", 793, 2, 1000, 3207), true},
		{"responses/more cached than there is", openai, `{"model":"gpt-5","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":60},"output_tokens":2}}`, usage("gpt-5", 0, 2, 60, 0), true},
		{"responses/absurd numbers", openai, `{"model":"m","usage":{"input_tokens":-7,"output_tokens":-5}}`, usage("m", 0, 0, 0, 0), true},
		{"chat/absurd numbers", openai, `{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":1000000001,"prompt_tokens_details":{"cached_tokens":-9}}}`, usage("m", 3, 0, 0, 0), true},
		{"chat/JSON", openai, chat, usage("gpt-4.1-2025-04-14", 40, 9, 60, 0), true},
		{"chat/stream", openai, chatPart + chatLast + "data: [DONE]\n\n", usage("gpt-4.1-2025-04-14", 40, 9, 60, 0), true},
		{"chat/no details", openai, `{"model":"local","usage":{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":null}}`, usage("local", 100, 9, 0, 0), true},
		{"chat/usage of nothing", openai, `{"model":"local","usage":{"prompt_tokens":0,"completion_tokens":0}}`, usage("local", 0, 0, 0, 0), true},
	}
}

func geminiAnswers() []answer {
	want := usage("gemini-2.5-pro", 1047, 51, 8000, 0)
	event := strings.TrimSpace(strings.TrimPrefix(geminiEvent, "data: "))
	return []answer{
		{"gemini/JSON", gemini, geminiLast, want, true},
		{"gemini/stream", gemini, geminiEvent + geminiEvent + "data: " + geminiLast + "\r\n\r\n", want, true},
		{"gemini/cut stream", gemini, geminiEvent + "data: " + geminiLast[:150], usage("gemini-2.5-pro", 1040, 17, 8000, 0), true},
		{"gemini/array", gemini, "[" + event + "\n,\r\n" + event + ",\n" + geminiLast + "]", want, true},
		{"gemini/cut array", gemini, "[" + event + "\n,\r\n" + geminiLast[:200], usage("gemini-2.5-pro", 1040, 17, 8000, 0), true},
		{"gemini/an array after an object", gemini, "{}\n[" + geminiLast + "]", want, true},
		{"gemini/empty array", gemini, "[]", meter.Usage{}, false},
	}
}

func withoutUsage() []answer {
	return []answer{
		{"none/empty", anthropic, "", meter.Usage{}, false},
		{"none/white space", anthropic, " \r\n", meter.Usage{}, false},
		{"none/count_tokens", anthropic, `{"input_tokens":2095}`, meter.Usage{}, false},
		{"none/countTokens", gemini, `{"totalTokens":31,"cachedContentTokenCount":4,"promptTokensDetails":[{"modality":"TEXT","tokenCount":31}]}`, meter.Usage{}, false},
		{"none/models", anthropic, `{"data":[{"type":"model","id":"claude-opus-4-1","usage":{"input_tokens":3}}],"has_more":false}`, meter.Usage{}, false},
		{"none/error", openai, `{"error":{"message":"no usage","usage":{"input_tokens":1}},"model":"m"}`, meter.Usage{}, false},
		{"none/chat without include_usage", openai, chatPart + "data: [DONE]\n\n", meter.Usage{}, false},
		{"none/responses cut", openai, created, meter.Usage{}, false},
		{"none/HTML", openai, "<html>\n<body>\"usage\": {\"input_tokens\":1}</body>\n\n</html>", meter.Usage{}, false},
		{"none/text", openai, `"usage":{"input_tokens":1}`, meter.Usage{}, false},
		{"none/empty usage", anthropic, `{"model":"m","usage":{}}`, meter.Usage{}, false},
		{"none/a list of usages", anthropic, `{"usage":[{"input_tokens":1}],"message":[{"usage":{"input_tokens":1}}]}`, meter.Usage{}, false},
		{"none/broken usage", anthropic, `{"usage":{"input_tokens":1,]},"model":"m"}`, meter.Usage{}, false},
		{"none/another API's", gemini, responses, meter.Usage{}, false},
		{"none/another API's too", anthropic, geminiLast, meter.Usage{}, false},
		{"none/deep", anthropic, strings.Repeat("[", 40) + `{"usage":{"input_tokens":1}}` + strings.Repeat("]", 50) + "}}", meter.Usage{}, false},
		{"none/a key that is too long", anthropic, `{"usage` + strings.Repeat("e", 40) + `":{"input_tokens":1}}`, meter.Usage{}, false},
	}
}
