package proctree

import (
	"bytes"
	"testing"
)

// FuzzProc parses names and environments, which a process chooses itself.
func FuzzProc(f *testing.F) {
	f.Add([]byte("42 (a) (b c) S 1 2 3 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 777 1 1 1"))
	f.Add([]byte("A=1\x00MARK=x=y\x00XMARK=z\x00NOVALUE\x00\x00"))
	f.Add([]byte("RssAnon:\t  12 kB\nRssShmem: x kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := parseStat(data); err == nil {
			if again, err := ParseIdentity(p.String()); err != nil || again != p.Identity {
				t.Errorf("%+v became %+v, %v", p.Identity, again, err)
			}
		}
		values, found := findMark(data, []string{"MARK"})
		if found && !bytes.Contains(data, []byte("MARK="+values[0])) {
			t.Errorf("the mark %q is not in %q", values[0], data)
		}
		_ = heldMemory(string(data))
	})
}
