package policy

import (
	"bytes"
	"fmt"
	"iter"
)

// hostile yields bodies of about the given size that are made to be expensive, with the text of
// the refusal; empty for a call that is passed on.
func hostile(size int) iter.Seq2[string, func() (body []byte, refusal string)] {
	type made struct {
		name, head, part, tail, refusal string
	}
	return func(yield func(string, func() ([]byte, string)) bool) {
		for _, m := range []made{
			{"members", `{`, `"%x":0,`, `"z":0}`, "more than 1000 members"},
			{"members of a message", `{"messages":[{`, `"%x":0,`, `"z":0}]}`, "values"},
			{"members of a tool", `{"tools":[{`, `"%x":0,`, `"z":0}]}`, "more than 64 members"},
			{"tools", `{"tools":[`, `{},`, `{}]}`, "more than 10000 tools"},
			{"tools of one tool", `{"tools":[{"type":"namespace","tools":[`, `{},`, `{}]}]}`, "tools"},
			{"a tool", `{"tools":[{"type":"web_search","x":[`, `0,`, `0]}]}`, "values"},
			{"depth", `{"messages":`, `[`, ``, "levels"},
			{"depth of a tool", `{"tools":`, `[{"type":"namespace","tools":`, ``, "levels"},
			{"values", `{"messages":[`, `0,`, `0]}`, "values"},
			{"blocks", `{"messages":[{"content":[`, `{"text":""},`, `{}]}]}`, "values"},
			{"links", `{"contents":[{"parts":[`, `{"x_url":"data:","y":"a b:c"},`, `{}]}]}`, "values"},
			{"escapes", `{"messages":[{"content":"`, `\u0061`, `"}]}`, ""},
			{"escapes in a name", `{"`, `\u0061`, `":0}`, "a name of more than"},
			{"escapes in a URL", `{"messages":[{"content":[{"url":"`, `\u0020`, `"}]}]}`, "address"},
			{"a string", `{"messages":[{"content":"`, `word `, `"}],"tools":[{"type":"web_search"}]}`, ""},
			{"white space", `{`, ` `, `}`, ""},
			{"a number", `{"messages":`, `1`, `}`, ""},
			{"a model", `{"model":"`, `m`, `"}`, "model"},
		} {
			body := func() ([]byte, string) {
				out := append(make([]byte, 0, size+1024), m.head...)
				if m.part != `"%x":0,` {
					out = append(out, bytes.Repeat([]byte(m.part), size/len(m.part))...)
				}
				for i := 0; len(out) < size; i++ {
					out = fmt.Appendf(out, m.part, i)
				}
				return append(out, m.tail...), m.refusal
			}
			if !yield(m.name, body) {
				return
			}
		}
	}
}
