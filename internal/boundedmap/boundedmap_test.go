package boundedmap

import (
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
)

func TestAMapKeepsWhatFits(t *testing.T) {
	m := Map[int]{Max: 1000}
	for i := range 5 {
		m.Put(fmt.Sprint(i), i, 50)
		m.Put(fmt.Sprint(i), i+10, 50) // replaces the first
	}
	for i := range 5 {
		if v, ok := m.Get(fmt.Sprint(i)); v != i+10 || !ok {
			t.Errorf("%d: %d, %v", i, v, ok)
		}
	}
	m.Delete("1")
	m.Delete("never")
	if _, ok := m.Get("1"); ok {
		t.Error("a deleted entry is there")
	}
	m.Put("large", 1, 2000)
	m.Put("small", 2, 1)
	if _, ok := m.Get("large"); ok {
		t.Error("one that is too large stays")
	}
	if v, ok := m.Get("small"); v != 2 || !ok {
		t.Error("what was put last is not there")
	}
}

func TestTheMemoryOfAMapIsBounded(t *testing.T) {
	m := Map[string]{Max: 8 << 20}
	testmemory.AtMost(t, 24<<20, func() {
		for i := range 200_000 {
			m.Put(fmt.Sprint(i), "", 0)
		}
		for i := range 200 {
			m.Put(fmt.Sprint(i), string(make([]byte, 1<<20)), 1<<20)
		}
	})
	m.Put("small", "", 0)
	m.Put("large", string(make([]byte, 9<<20)), 9<<20)
	if _, ok := m.Get("large"); ok {
		t.Error("an entry that alone is too large is kept")
	}
	if _, ok := m.Get("small"); !ok {
		t.Error("one that is not kept makes the others forgotten")
	}
}
