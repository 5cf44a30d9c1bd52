package query

import (
	"bytes"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// FuzzJournal checks that the stored output of a query is read to its end.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"type":"permission_request","query_id":"q","payload":{"id":"p"}}` + "\n" + `{"type":"query_completed","query_id":"q"}` + "\nhalf"))
	f.Add([]byte(`{"type":"result","payload":{"ok":false,"error":{"code":"c"}}}` + "\n\xff\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		far, err := readProgress(bytes.NewReader(data), 1<<16, "q")
		settled, ended := far.settled, far.ended
		for id, done := range settled {
			if ended && !done {
				t.Errorf("the query has ended, and %q waits for an answer", id)
			}
		}
		if err != nil && settled != nil {
			t.Errorf("%v, and %v", err, settled)
		}
		lines := 0
		readEvents(bytes.NewReader(data), 1<<16, func(e LogEntry) bool { lines++; return e.Message != "" })
		readLines(bytes.NewReader(data), func(e LogEntry) bool { lines++; return true })
		if most := 4 * (bytes.Count(data, []byte("\n")) + 1); lines > most {
			t.Errorf("%d lines of a log, want at most %d", lines, most)
		}
	})
}

// FuzzResult checks that the result of a script is an error or has data that can be decoded.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"type":"result","ok":true,"data":{}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		ev, err := runnerscripts.DecodeEvent(line)
		if err != nil {
			return
		}
		if r, err := script.DecodeResult(ev); err == nil && r == nil {
			t.Error("neither a result nor an error")
		}
		_ = logMessage(ev)
	})
}

// FuzzPrompts checks what a host takes from the file in which a sandbox lists its prompts.
func FuzzPrompts(f *testing.F) {
	f.Add([]byte(`{"query_id":"q","process":"x","offset":-1}` + "\nhalf"))
	f.Add([]byte(`{"query_id":"q","process":"x"}` + "\n" + `{"query_id":"q","seen":true}` + "\n"))
	f.Add([]byte("null\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		asked, err := readPrompts(data, File)
		for _, q := range asked {
			if q.QueryID == "" || err != nil {
				t.Errorf("a query %+v, and %v", q, err)
			}
		}
	})
}
