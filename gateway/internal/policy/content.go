package policy

import (
	"bytes"
	"errors"
	"regexp"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The members of the conversation in the calls of all APIs.
var (
	// conversation are the members of a call that hold the conversation.
	conversation = set("system", "messages", "input", "instructions", "prompt", "prediction", "contents",
		"systemInstruction", "system_instruction", "generateContentRequest", "generate_content_request")
	// texts are the members whose strings an API reads as text, also if that is an address.
	texts = set("text", "content", "system", "thinking", "reasoning", "reasoning_content", "refusal", "title", "context", "source", "data", "code",
		"output", "result", "error", "message", "stdout", "stderr", "logs", "query", "diff", "name", "instructions", "input",
		"signature", "encrypted_content", "thoughtSignature", "thought_signature", "displayName", "display_name")
	// written are the types of what an API itself has written, and does not fetch again.
	written = set("web_search_result")
	// opaque are the members with data of the agent's own tools, and with what an API has found.
	opaque = set("input", "arguments", "args", "response", "action", "operation", "parameters",
		"citations", "annotations", "queries", "results", "logprobs", "generationConfig", "generation_config", "tools")
)

func set(names ...string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

var (
	// fetched matches addresses with the schemes that APIs fetch.
	fetched = regexp.MustCompile(`(?i)^(https?:|ftps?:|gs:|s3:|file:|//)`)
	// inline matches the values of an address that need no fetch: none, data, and a file that
	// was uploaded to Gemini.
	inline = regexp.MustCompile(`(?i)^($|data:|(https://generativelanguage\.googleapis\.com/v1(alpha|beta)?/)?files/[a-z0-9-]{1,64}$)`)
)

// content reads a part of the conversation, which is the value of the member name. It refuses
// addresses that the API would fetch. That holds for all members but the known ones with text,
// because APIs get new kinds of content.
func (p *pass) content(name string) error {
	switch p.next() {
	case '{':
		return p.part()
	case '[':
		return p.array(func() error { return p.content(name) })
	case '"':
		text, err := p.text()
		if err != nil || texts[name] {
			return err
		}
		if value := head(text); (isAddress(name) || fetched.MatchString(value)) && !inline.MatchString(value) {
			return refuse("the call has an address in %q, which the model's API would fetch, and this sandbox must not reach; to allow it, name web_fetch in models.provider_tools", name)
		}
		return nil
	default:
		return p.value()
	}
}

// part reads an object of the conversation.
func (p *pass) part() error {
	var kinds []string
	var address error // of the member url, which the API does not fetch from all kinds
	err := p.object(func(text []byte) error {
		name, _ := decode(text)
		if err := checkCase(name); err != nil && !p.strict {
			return err
		}
		switch {
		case name == "tools" && !p.strict && p.api == runnerscripts.APIOpenAI: // that the agent has found
			return p.found()
		case opaque[name] && !p.strict:
			return p.value()
		case name == "variables": // of a stored prompt, with names and content as the caller likes
			defer func(was bool) { p.strict = was }(p.strict)
			p.strict = true
			return p.content(name)
		case name == "type" && p.next() == '"':
			kind, err := p.text()
			if err == nil {
				name, _ := decode(kind)
				kinds = append(kinds, name)
			}
			return err
		case name == "url" && p.next() == '"':
			err := p.content(name)
			if refused, ok := errors.AsType[*RefusedError](err); ok {
				address, err = refused, nil
			}
			return err
		}
		return p.content(name)
	})
	if err == nil && (p.strict || len(kinds) != 1 || !written[kinds[0]]) {
		err = address
	}
	return err
}

// isAddress reports whether an API fetches from members of this name, such as url, image_url and
// fileUri.
func isAddress(name string) bool {
	end := strings.ToLower(name[max(0, len(name)-3):])
	return end == "url" || end == "uri"
}

// found reads the tools in an item of the conversation.
func (p *pass) found() error {
	_, gone, err := p.filter()
	if err == nil && len(gone) > 0 {
		err = refuse("the conversation adds the tool %q, which the API runs itself; to allow it, name it in models.provider_tools", gone[0])
	}
	return err
}

// head returns the beginning of a string, without white space before it and line breaks and tabs
// in it, as programs read addresses. A beginning of much white space is an address, as nobody
// else writes it.
func head(text []byte) string {
	const most = 256
	var out []byte
	end := len(text) - 1
	for text = text[1:end]; len(text) > 0 && len(out) < most; {
		if end-len(text) > 16*most && len(out) == 0 {
			return "//"
		}
		r, n := rune(text[0]), 1
		if r == '\\' {
			n = escape(text)
			if r, _ = hex(text); n == 2 {
				r = rune(text[1])
				if at := bytes.IndexByte([]byte("bfnrt"), text[1]); at >= 0 {
					r = rune("\b\f\n\r\t"[at])
				}
			}
		}
		text = text[n:]
		if r < ' ' || r == ' ' && len(out) == 0 {
			continue
		}
		out = append(out, byte(min(r, 0xff)))
	}
	return string(out)
}
