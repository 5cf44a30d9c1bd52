package runnerscripts

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// seedLines returns lines that hand-written scanners get wrong.
func seedLines() []string {
	return []string{
		`{"type":"log","payload":{"level":"warn","message":"x"},"time":"2026-11-21T09:12:04.056Z"}`,
		`{"seq":18446744073709551615,"type":"log"}`, `{"seq":18446744073709551616,"type":"log"}`, `{"seq":-1,"type":"x"}`,
		`{"seq":01,"type":"x"}`, `{"seq":1.0,"type":"x"}`, `{"seq":1e2,"type":"x"}`, `{"seq":null,"type":"x"}`, `{"seq":999999999999999999,"type":"x"}`,
		`{"type":"a","type":"b"}`, `{"Type":"a"}`, `{"type":"a","TYPE":"b"}`, `{"type":"a\u0062"}`, `{"type":null}`, `{"type":1}`, `{"type":""}`,
		`{"t\u0079pe":"a"}`, "{\"type\":\"a\x00\"}", "{\"type\":\"\xff\"}", "{\"type\":\"a\",\"\xff\":1}", "{\"type\":\"a\",\"payload\":\"\xff\"}",
		`{"type":"a","payload":null}`, `{"type":"log","payload":null}`, `{"type":"a","payload": [1, 2 ] }`, `{"type":"a","payload":{},}`,
		`{"type":"a","payload":{"a":1,}}`, `{"type":"a","payload":[1,]}`, `{"type":"a","payload":[,]}`, `{"type":"a","payload":"\x"}`,
		`{"type":"a","payload":"\u12"}`, `{"type":"a","payload":"\uD800"}`, `{"type":"a","payload":-}`, `{"type":"a","payload":-0.0e+1}`,
		`{"type":"a","payload":1.}`, `{"type":"a","payload":.1}`, `{"type":"a","payload":1e}`, `{"type":"a","payload":+1}`, `{"type":"a","payload":tru}`,
		`{"type":"a","time":"2026-11-21T09:12:04,056Z"}`, `{"type":"a","time":"2026-11-21"}`, `{"type":"a","time":5}`, `{"type":"a","time":""}`,
		`{"type":"a","time":"2026-11-21T24:00:00Z"}`, `{"type":"a","time":"2026-11-21T09:12:04+99:00"}`, `{"type":"a","time":null}`,
		`{"type":"a"} `, ` {"type":"a"}`, `{"type":"a"}x`, `{"type":"a"}{}`, `[]`, `"type"`, `{`, `{"type"`, `{"type":`, `{"type":"a`, `{"type":"a"`, `{}`,
		`{"type":"result","ok":true,"data":{"a":[{}]}}`, `{"payload":{"type":"x"},"type":"y"}`, `{"type":"a","session_id":"\"","source":"<>"}`,
		`{"type":"a","payload":` + string(bytes.Repeat([]byte("["), 600)) + string(bytes.Repeat([]byte("]"), 600)) + `}`,
		"{\t\"type\"\r:\n\"a\" , \"payload\" : { } }", `{"type":"abcdefg\h"}`, `{"type":"a","payload":"12345678901234\"567"}`,
	}
}

// FuzzDecodeEvent compares DecodeEvent with encoding/json: both accept the same lines and decode
// the same values.
func FuzzDecodeEvent(f *testing.F) {
	for _, s := range seedLines() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		sameAsStandard(t, line)
	})
}

func TestDecodeEventAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range seedLines() {
		sameAsStandard(t, []byte(s))
		for cut := range min(len(s), 200) { // also with a byte missing
			sameAsStandard(t, []byte(s[:cut]+s[cut+1:]))
		}
	}
}

func sameAsStandard(t *testing.T, line []byte) {
	t.Helper()
	var want Event
	wantErr := json.Unmarshal(line, &want)
	if wantErr == nil {
		want, wantErr = finish(want, line)
	}
	before := bytes.Clone(line)
	got, err := DecodeEvent(line)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: error is %v, encoding/json's is %v", line, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%q:\n got %+v\nwant %+v", line, got, want)
	}
	if !bytes.Equal(before, line) {
		t.Fatalf("the line was changed: %q, before %q", line, before)
	}
	if err == nil && !json.Valid(got.Payload) {
		t.Fatalf("%q: payload %q is no JSON", line, got.Payload)
	}
	// TypeOf agrees wherever the line has only one type.
	if typ := TypeOf(line); err == nil && bytes.Count(bytes.ToLower(line), []byte("ype")) == 1 && !bytes.Contains(line, []byte(`\`)) && typ != got.Type {
		t.Fatalf("%q: TypeOf is %q and DecodeEvent says %q", line, typ, got.Type)
	}
}

// FuzzDecoder checks that the decoder reaches the end of any output, and that every nonempty line
// is an event or a counted diagnostic.
func FuzzDecoder(f *testing.F) {
	for _, s := range seedLines() {
		f.Add([]byte(s+"\n\r\n"+s), uint8(7))
	}
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		dec := NewDecoder(&stutter{data: stream, step: int(step)%64 + 1}, 0)
		events, want := int64(0), int64(0)
		for line := range bytes.SplitSeq(stream, []byte("\n")) {
			if len(bytes.TrimSuffix(line, []byte("\r"))) > 0 {
				want++
			}
		}
		for {
			ev, err := dec.Next()
			if err != nil {
				break
			}
			if ev.Type == "" || !json.Valid(ev.Payload) {
				t.Fatalf("event %+v is none", ev)
			}
			events++
		}
		c := dec.Counts()
		// A repaired line is two events, unless it was malformed as well.
		if repaired := events - want; repaired < 0 || repaired > c.InvalidUTF8 {
			t.Fatalf("%q: %d events from %d lines, counts %+v", stream, events, want, c)
		}
	})
}

// FuzzDecodeRequest checks that a script's input is either an error with a reason, or a request
// that stays the same when it is encoded and decoded again.
func FuzzDecodeRequest(f *testing.F) {
	const session = `"protocol":2,"session_id":"6f1c2d3e-0000-4000-8000-000000000001","agent":{"name":"script"},` +
		`"paths":{"session":"/s","workspace":"/s/w","home":"/s/h","app":"/s/a","logs":"/s/l"}`
	f.Add([]byte(`{` + session + `}`))
	f.Add([]byte(`{` + session + `,"prompt":"x","profile":{"memory":"m","mcp_servers":[{"name":"a","command":"b"}]}}`))
	f.Add([]byte(`{"type":"interrupt","query_id":"q"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		fuzzRequest[SetupRequest](t, line)
		fuzzRequest[QueryRequest](t, line)
		fuzzRequest[TranscriptRequest](t, line)
		if c, err := DecodeControl(line); err == nil && c.Type == "" {
			t.Errorf("a control line without a type: %q", line)
		}
	})
}

func fuzzRequest[T Request](t *testing.T, line []byte) {
	t.Helper()
	req, err := DecodeRequest[T](line)
	if err != nil {
		return
	}
	again, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeRequest[T](again); err != nil {
		t.Errorf("%q was taken, and sent on it is %q: %v", line, again, err)
	}
}
