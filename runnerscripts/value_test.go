package runnerscripts

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestTheValueOfAnEventHasTheTypeThatBelongsToIt(t *testing.T) {
	for _, typ := range EventTypes() {
		v := Event{Type: typ, Payload: []byte("{}")}.Value()
		want := PayloadType(typ)
		if isOwn := want.Kind() == reflect.Struct && want.Name() != ""; isOwn != (v != nil) {
			t.Errorf("%s: value %T, payload %s", typ, v, want)
		}
		if v != nil && reflect.TypeOf(v) != reflect.PointerTo(want) {
			t.Errorf("%s: value %T, payload %s", typ, v, want)
		}
		if v := (Event{Type: typ, Payload: []byte(`"x"`)}).Value(); v != nil {
			t.Errorf("%s: a malformed payload is %+v", typ, v)
		}
	}
	ev := Event{Type: TypeToolCall, Payload: []byte(`{"title":"Write f"}`)}
	if call, ok := ev.Value().(*ToolCall); !ok || call.Title != "Write f" {
		t.Errorf("value %+v", ev.Value())
	}
	if v := (Event{Type: "of_the_future", Payload: []byte("{}")}).Value(); v != nil {
		t.Errorf("an unknown type has the value %+v", v)
	}
}

func TestAToolCallIsUpdated(t *testing.T) {
	whole := ToolCall{
		ToolCallID: "1", Title: "Write", Name: "write", Kind: ToolEdit, Status: ToolPending,
		RawInput: json.RawMessage(`{"path":"a"}`), RawOutput: json.RawMessage(`1`), ExitCode: 3, Signal: 9,
		Content: []ToolCallContent{{Type: "diff"}}, Locations: []Location{{Path: "a"}},
	}
	got := whole
	got.Update(ToolCall{RawInput: json.RawMessage(` null `), RawOutput: json.RawMessage(`null`)})
	if !reflect.DeepEqual(got, whole) {
		t.Errorf("an update of nothing changes the call to %+v", got)
	}
	got = ToolCall{ToolCallID: "0", Title: "?", Name: "?", Kind: "?", Status: "?", RawInput: json.RawMessage(`0`), RawOutput: json.RawMessage(`0`), ExitCode: 1, Signal: 1}
	got.Update(whole)
	if !reflect.DeepEqual(got, whole) {
		t.Errorf("an update of everything makes it %+v", got)
	}
}
