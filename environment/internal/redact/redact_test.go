package redact

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// secretsOfTests are the secrets in the tests of JSON.
var secretsOfTests = []string{"sk-QASECRET/123", "sk-QASECRET/123-and-more", `a"b\c` + "\n\té🙂€", "12345678"}

func TestSecretsAreFoundHoweverJSONHasThem(t *testing.T) {
	r := New(append([]string{"nothing"}, secretsOfTests...))
	for value, want := range map[string]string{
		`"x sk-QASECRET/123 y"`:                                   `"x [redacted] y"`,
		`"sk-QASECRET\/123"`:                                      `"[redacted]"`,
		`"\u0073k-QASECRET\u002f12\u0033"`:                        `"[redacted]"`,
		`"\u0073\u006B-QASECRET\u002F123-and-more"`:               `"[redacted]"`,
		`{"sk-QASECRET/123":{"deep":["sk-QASECRET/123",1]}}`:      `{"[redacted]":{"deep":["[redacted]",1]}}`,
		`{"nothing_at" : "nothing","x":["anothing"],"nothing":1}`: `{"nothing_at" : "[redacted]","x":["a[redacted]"],"nothing":1}`,
		`["nothing",{"nothing":"nothing"}]`:                       `["[redacted]",{"nothing":"[redacted]"}]`,
		`{"nothing-1":"\u006eothing","nothing":0}`:                `{"[redacted]-1":"[redacted]","nothing":0}`,
		`{"nothing":0}`:                                           "",
		`"sk-sk-QASECRET/123sk-QASECRET/123"`:                     `"sk-[redacted][redacted]"`,
		`"a\"b\\c\n\té🙂€"`:                                        `"[redacted]"`,
		`"a\"b\\c\u000a\u0009\u00e9\ud83d\ude42\u20AC!"`:          `"[redacted]!"`,
		`"a\"b\\c\u000a\u0009\u00e9\ud83d"`:                       "",
		`"sk-QASECRET/12"`:                                        "",
		`["sk-QASECRET/","123"]`:                                  "",
		`{"n":12345678,"s":"12345678"}`:                           `{"n":12345678,"s":"[redacted]"}`,
		`"\\sk-QASECRET/123\\"`:                                   `"\\[redacted]\\"`,
		`{"a":"\\","b":"\"sk-QASECRET/123\""}`:                    `{"a":"\\","b":"\"[redacted]\""}`,
		`{"url":"https://api.example.com/v1/responses","a":1}`:    "",
	} {
		if want == "" {
			want = value
		}
		if got := string(r.JSON([]byte(value))); got != want || !json.Valid([]byte(got)) {
			t.Errorf("%s becomes %s, want %s", value, got, want)
		}
	}
	if got := string(Redactor{}.JSON([]byte(`"a"`))); got != `"a"` {
		t.Errorf("without secrets: %s", got)
	}
}

// FuzzRedactJSON compares JSON with Text on the decoded strings.
func FuzzRedactJSON(f *testing.F) {
	f.Add([]byte(`{"a\u0073k-QASECRET/123":["\ud83d","\ud83d\ude42",null,1e3,"a\"b\\c\n\té🙂€"]}`))
	f.Add([]byte(`"\u0073k-QASECRET\/123-and-mor\u0065 \\u0073"`))
	r := New(secretsOfTests)
	var safe func(v any) any
	safe = func(v any) any {
		switch v := v.(type) {
		case string:
			return r.Text(v)
		case []any:
			for i := range v {
				v[i] = safe(v[i])
			}
		case map[string]any:
			clean := make(map[string]any)
			for key, value := range v {
				clean[r.Text(key)] = safe(value)
			}
			return clean
		}
		return v
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		var before, after any
		if json.Unmarshal(value, &before) != nil {
			return
		}
		got := r.JSON(bytes.Clone(value))
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%s becomes %s: %v", value, got, err)
		}
		if bytes.Contains(value, []byte("12345678")) || bytes.Count(value, []byte("redacted")) > 0 || bytes.Count(got, []byte(`[redacted]":`)) > 1 {
			return // keys that become the same
		}
		if !reflect.DeepEqual(safe(before), after) {
			t.Errorf("%s becomes %s", value, got)
		}
	})
}

func TestNoPartOfASecretIsLeftWhereStandardErrorWasCut(t *testing.T) {
	secret := "begin-" + strings.Repeat("0123456789", 9) + "-end"
	for _, length := range []int{40 << 10, 40<<10 + 1, 40<<10 + len(secret)/2} {
		tail := &Tail{Hide: New([]string{secret})}
		text := strings.Repeat(secret, length/len(secret)+1)[:length]
		if _, err := tail.Write([]byte(text[:100])); err != nil {
			t.Fatal(err)
		}
		if _, err := tail.Write([]byte(text[100:] + "\nthe end\n")); err != nil {
			t.Fatal(err)
		}
		got := tail.String()
		// The text may end in an incomplete secret, which was printed so and not cut here.
		got = strings.TrimSuffix(got, text[length-length%len(secret):]+"\nthe end\n")
		if strings.Contains(got, "-end") || strings.Contains(got, "0123456789") || got == "" {
			t.Errorf("%d bytes leave %.100q", length, got)
		}
	}
}

// BenchmarkRedactJSON redacts a payload of a megabyte without secrets.
func BenchmarkRedactJSON(b *testing.B) {
	payload, err := json.Marshal(map[string]string{"text": strings.Repeat("some words of \"code\";\n", 50_000)})
	if err != nil {
		b.Fatal(err)
	}
	r := New([]string{"sk-0123456789", "whatever-it-is"})
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if len(r.JSON(payload)) != len(payload) {
			b.Fatal("it found one")
		}
	}
}
