package sessionapi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The wire has a place for every field, and no zero values besides it: what a client leaves out is the server's to choose.
func TestPayloadsArriveAsTheyWereSent(t *testing.T) {
	if data, err := json.Marshal(NewSession{}); err != nil || string(data) != "{}" {
		t.Errorf("an empty payload is %s, %v", data, err)
	}
	sent := NewSession{
		Config: json.RawMessage(`{"agent":"script"}`), PermissionTimeout: Duration(time.Second), Metadata: map[string]string{"a": "b"}, RejectBusy: true,
		MaxQueue: 1, HealthInterval: Duration(-1), IdleTimeout: Duration(time.Hour), NoFiles: true, MaxQuerySize: -1, MaxSessionSize: 2,
		CheckpointInterval: Duration(90 * time.Second), KeepPeriodic: 3, WatchWorkspace: &FilesOptions{Ignore: []string{}, MaxContent: 4},
	}
	for v, i := reflect.ValueOf(sent), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves out %s", v.Type().Field(i).Name)
		}
	}
	data, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got NewSession
	if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, sent) {
		t.Errorf("%s arrives as %+v, %v", data, got, err)
	}
	if n := bytes.Count(data, []byte(`":`)); n < reflect.TypeFor[NewSession]().NumField() || !strings.Contains(string(data), `"ignore":[]`) {
		t.Errorf("there are %d keys: %s", n, data)
	}
}

func TestTheEventsOfAQueryEndWithIt(t *testing.T) {
	all := []runnerscripts.Event{
		{Seq: 1, QueryID: "a", Type: runnerscripts.TypeQueryQueued},
		{Seq: 2, QueryID: "b", Type: runnerscripts.TypeQueryQueued},
		{Seq: 3, Type: runnerscripts.TypeEnvironmentReady},
		{Seq: 4, QueryID: "b", Type: runnerscripts.TypeQueryFailed},
		{Seq: 5, QueryID: "a", Type: runnerscripts.TypeQueryFailed},
		{Seq: 6, Type: runnerscripts.TypeCheckpoint},
	}
	var seqs []uint64
	for ev, err := range EventsOf("a", func(yield func(runnerscripts.Event, error) bool) {
		for _, ev := range all {
			if !yield(ev, nil) {
				return
			}
		}
	}) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, ev.Seq)
	}
	if want := []uint64{1, 3, 5}; !reflect.DeepEqual(seqs, want) {
		t.Errorf("the events are %v, want %v", seqs, want)
	}
}
