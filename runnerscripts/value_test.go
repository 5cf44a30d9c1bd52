package runnerscripts

import (
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
