// Package boundedmap remembers what a sandbox has said, up to a size.
package boundedmap

// overhead is how many bytes an entry takes beside its key and what the value says.
const overhead = 128

// Map maps strings to values. One that grows over its size forgets all entries but
// the one that was put last. An entry that alone is larger is not remembered. The zero
// value remembers nothing.
type Map[V any] struct {
	// Max is how many bytes the entries may take together.
	Max int

	entries map[string]entry[V]
	size    int
}

type entry[V any] struct {
	value V
	size  int
}

// Get returns a value, and whether it is known.
func (m *Map[V]) Get(key string) (V, bool) {
	e, ok := m.entries[key]
	return e.value, ok
}

// Put sets a value that takes so many bytes.
func (m *Map[V]) Put(key string, value V, size int) {
	size += overhead + len(key)
	m.Delete(key)
	if size > m.Max {
		return
	}
	if m.size += size; m.size > m.Max || m.entries == nil {
		m.entries, m.size = make(map[string]entry[V]), size
	}
	m.entries[key] = entry[V]{value, size}
}

// Delete forgets an entry.
func (m *Map[V]) Delete(key string) {
	m.size -= m.entries[key].size
	delete(m.entries, key)
}
