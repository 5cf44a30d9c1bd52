package meter

import "slices"

const (
	// maxKey is an upper bound on the length of the wanted keys, in bytes with quotes.
	maxKey = 32
	// maxValue is an upper bound on the size of the wanted values, in bytes.
	maxValue = 64 << 10
)

// picker finds the values of some keys in JSON that arrives in pieces, without keeping the
// rest. It tracks the structure only: in invalid JSON it finds nothing, or a value that does
// not decode.
//
// The keys are those of the outermost object, of the objects of an outermost array, and of
// the objects "message" and "response" in these.
type picker struct {
	depth     int     // how many objects and arrays are open
	base      int     // the depth of the outermost objects
	open      [4]byte // the brackets of the first depths, by depth
	inString  bool
	escaped   bool // the last byte was a backslash in a string
	expectKey bool // the next string of this depth is a key
	inner     bool // the key at base is that of an inner object

	inKey bool   // the string is a key that may be wanted
	key   []byte // that key, with its quotes

	valueDepth int    // the depth of the value that is kept; 0 if none is
	value      []byte // that value
}

// reset clears the state but keeps the buffers.
func (p *picker) reset() { *p = picker{key: p.key[:0], value: p.value[:0]} }

// write parses the next bytes. It passes each value that ends in them to the counter.
func (p *picker) write(b []byte, to *counter) {
	for len(b) > 0 {
		if p.inString {
			n := p.string(b)
			p.keep(b[:n])
			b = b[n:]
			continue
		}
		c := b[0]
		switch c {
		case '"':
			p.inString = true
			p.inKey = p.expectsKey()
			if p.inKey {
				p.key = p.key[:0]
			}
		case '{', '[':
			p.enter(c)
		case '}', ']', ',':
			if p.valueDepth > 0 && p.depth == p.valueDepth {
				inner := p.valueDepth > p.base
				p.valueDepth = 0
				to.value(string(p.key[1:len(p.key)-1]), p.value, inner)
			}
			p.leave(c)
		}
		p.keep(b[:1])
		if c == ':' {
			p.colon()
		}
		b = b[1:]
	}
}

// string returns how many bytes of b belong to the string, its end included.
func (p *picker) string(b []byte) int {
	escaped := p.escaped
	for i, c := range b {
		switch {
		case escaped:
			escaped = false
		case c == '\\':
			escaped = true
		case c == '"':
			p.inString, p.escaped = false, false
			return i + 1
		}
	}
	p.escaped = escaped
	return len(b)
}

// keep appends bytes to the current key or value. It drops what exceeds the maximum length.
func (p *picker) keep(b []byte) {
	switch {
	case p.valueDepth > 0:
		if len(p.value)+len(b) > maxValue {
			p.valueDepth = 0
			return
		}
		p.value = append(p.value, b...)
	case p.inKey:
		p.key = append(p.key, b[:min(len(b), maxKey-len(p.key))]...)
	}
	p.inKey = p.inKey && p.inString
}

func (p *picker) enter(bracket byte) {
	p.depth++
	if p.depth == 1 {
		p.base, p.inner = 1, false
		if bracket == '[' {
			p.base = 2
		}
	}
	if p.depth < len(p.open) {
		p.open[p.depth] = bracket
	}
	p.expectKey = bracket == '{'
}

func (p *picker) leave(c byte) {
	if c == ',' {
		p.expectKey = p.depth < len(p.open) && p.open[p.depth] == '{'
		return
	}
	p.depth = max(p.depth-1, 0)
	p.expectKey = false
}

// expectsKey reports whether the next string is a key that may be wanted.
func (p *picker) expectsKey() bool {
	return p.expectKey && (p.depth == p.base || p.depth == p.base+1 && p.inner)
}

// colon starts the value of a key.
func (p *picker) colon() {
	wanted := p.expectsKey()
	p.expectKey = false
	if !wanted {
		return
	}
	if p.depth == p.base {
		p.inner = slices.Contains([]string{`"message"`, `"response"`}, string(p.key))
	}
	if slices.Contains([]string{`"usage"`, `"usageMetadata"`, `"model"`, `"modelVersion"`}, string(p.key)) {
		p.valueDepth, p.value = p.depth, p.value[:0]
	}
}
