package runnerscripts

import (
	"errors"
	"strings"
	"testing"
)

const goodRequest = `{"protocol":2,"session_id":"6f1c","agent":{"name":"script"},"paths":{"session":"/s","app":"/s/app","workspace":"/s/workspace","home":"/s/home","mcp":"/s/mcp"},"prompt":"hi"}`

func TestRequestDecodes(t *testing.T) {
	req, err := DecodeRequest[QueryRequest]([]byte(goodRequest))
	if err != nil || req.Prompt != "hi" || req.SessionID != "6f1c" || req.Paths.Home != "/s/home" {
		t.Errorf("%+v, %v", req, err)
	}
}

func TestBadRequestSaysWhatAndHowToMendIt(t *testing.T) {
	change := func(from, to string) string {
		if !strings.Contains(goodRequest, from) {
			t.Fatalf("the request has no %s", from)
		}
		return strings.Replace(goodRequest, from, to, 1)
	}
	cases := []struct {
		name, line string
		code       FailureCode
		says       []string
	}{
		{"not JSON", "hello", FailInvalidRequest, []string{"one line of JSON"}},
		{"no protocol", change(`"protocol":2,`, ""), FailInvalidRequest, []string{`"protocol":2`}},
		{"a newer protocol, with fields of its own", change(`"protocol":2`, `"protocol":7,"novel":true`), FailProtocol, []string{"version 2", "version 7"}},
		{"unknown field", change(`"prompt"`, `"promt"`), FailInvalidRequest, []string{"promt"}},
		{"unknown field deep inside", change(`"name"`, `"nme"`), FailInvalidRequest, []string{"nme"}},
		{"field of another request", change(`"prompt":"hi"`, `"events":true`), FailInvalidRequest, []string{"events"}},
		{"wrong type", change(`"hi"`, `5`), FailInvalidRequest, []string{"prompt"}},
		{"two values", goodRequest + "{}", FailInvalidRequest, nil},
		{"no session", change(`"6f1c"`, `""`), FailInvalidRequest, []string{"session_id"}},
		{"session that is a path", change(`6f1c`, `../x`), FailInvalidRequest, []string{"session_id", "../x"}},
		{"session that is an option", change(`6f1c`, `-x`), FailInvalidRequest, []string{"session_id"}},
		{"no agent", change(`"name":"script"`, ``), FailInvalidRequest, []string{"agent"}},
		{"relative folder", change(`"/s/home"`, `"home"`), FailInvalidRequest, []string{"home", "absolute"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeRequest[QueryRequest]([]byte(c.line))
			f, ok := errors.AsType[*ScriptFailure](err)
			if !ok || f.Code != c.code {
				t.Fatalf("%v, want a ScriptFailure with %s", err, c.code)
			}
			for _, part := range c.says {
				if !strings.Contains(f.Message, part) {
					t.Errorf("%q does not say %q", f.Message, part)
				}
			}
		})
	}
}

func TestControlDecodesStrictly(t *testing.T) {
	c, err := DecodeControl([]byte(`{"type":"permission","id":"p","decision":{"kind":"allow_once","updated_input":{"a":1}}}`))
	if err != nil || c.Decision == nil || string(c.Decision.UpdatedInput) != `{"a":1}` {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := DecodeControl([]byte(`{"type":"of tomorrow"}`)); err != nil || c.Type != "of tomorrow" {
		t.Errorf("unknown type: %+v, %v", c, err)
	}
	for _, bad := range []string{`{}`, `x`, `{"type":"prompt","tezt":"a"}`, `{"type":"prompt"} 1`} {
		_, err := DecodeControl([]byte(bad))
		if f, ok := errors.AsType[*ScriptFailure](err); !ok || f.Code != FailInvalidRequest {
			t.Errorf("%s: %v, want invalid_request", bad, err)
		}
	}
}
