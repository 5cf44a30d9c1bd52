package boundedmap

import (
	"fmt"
	"testing"
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
