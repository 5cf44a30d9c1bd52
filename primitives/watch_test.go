package primitives_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestTheNamesOfAWatchSurviveJSON(t *testing.T) {
	for _, e := range []primitives.WatchEvent{
		{Op: primitives.OpRename, Path: "a\xff", From: "b\xfe", Dir: true, Time: time.Unix(1, 0).UTC()},
		{Op: primitives.OpCreate, Path: "é\n", Size: 3, Content: []byte("x"), Time: time.Unix(1, 0).UTC()},
	} {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var read primitives.WatchEvent
		if err := json.Unmarshal(data, &read); err != nil || !reflect.DeepEqual(read, e) {
			t.Errorf("%s is %+v, %v", data, read, err)
		}
		if got, want := strings.Contains(string(data), "_bytes"), e.Op == primitives.OpRename; got != want {
			t.Errorf("%s", data)
		}
	}
}
