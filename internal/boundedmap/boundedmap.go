// Package boundedmap caches data from a sandbox, up to a size.
package boundedmap

// overhead is the estimated size of an entry in bytes, without its key and value.
const overhead = 128

// Map maps strings to values. When its size would exceed Max, it drops all entries except the
// new one. It does not store an entry that alone exceeds Max. The zero value stores nothing.
type Map[V any] struct {
	// Max is the maximum size of all entries together, in bytes.
	Max int

	entries map[string]entry[V]
	size    int
}

type entry[V any] struct {
	value V
	size  int
}

// Get returns the value of key and whether there is one.
func (m *Map[V]) Get(key string) (V, bool) {
	e, ok := m.entries[key]
	return e.value, ok
}

// Put sets the value of key. size is the size of the value in bytes.
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

// Delete removes the entry of key, if there is one.
func (m *Map[V]) Delete(key string) {
	m.size -= m.entries[key].size
	delete(m.entries, key)
}
