package guest

import (
	"encoding/binary"
	"errors"
	"time"
)

// errEncoding means that bytes from the peer are not what they should be.
var errEncoding = errors.New("malformed message")

// codec encodes and decodes by the same field lists, so that both directions
// cannot differ: every code function either appends the value to buf or takes it
// from there. The first error sticks and makes the rest do nothing.
type codec struct {
	buf      []byte
	decoding bool
	err      error
}

// message is a value that goes over the wire.
type message interface{ code(c *codec) }

// encode returns the encoded message.
func encode(m message) []byte {
	c := codec{buf: make([]byte, 0, 128)}
	m.code(&c)
	return c.buf
}

// decode fills m, which must be a zero value. All of b must be used.
func decode(b []byte, m message) error {
	c := codec{buf: b, decoding: true}
	m.code(&c)
	if c.err == nil && len(c.buf) > 0 {
		c.fail()
	}
	return c.err
}

func (c *codec) fail() {
	c.err = errEncoding
	c.buf = nil
}

func (c *codec) uint64(v *uint64) {
	if !c.decoding {
		c.buf = binary.AppendUvarint(c.buf, *v)
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *codec) int64(v *int64) {
	if !c.decoding {
		c.buf = binary.AppendVarint(c.buf, *v)
		return
	}
	x, n := binary.Varint(c.buf)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *codec) bool(v *bool) {
	var x uint64
	if *v {
		x = 1
	}
	c.uint64(&x)
	if x > 1 {
		c.fail()
	}
	*v = x == 1
}

// size codes a length of things that take at least one byte each, so that a
// wrong one is noticed before anything is allocated. Nil and empty differ: the
// encoded value is one more than the length, and zero for nil.
func (c *codec) size(length int, isNil bool) (int, bool) {
	var x uint64
	if !isNil {
		x = uint64(length) + 1
	}
	c.uint64(&x)
	if c.decoding && x > uint64(len(c.buf))+1 {
		c.fail()
	}
	if x == 0 || c.err != nil {
		return 0, true
	}
	return int(x - 1), false
}

func (c *codec) bytes(v *[]byte) {
	n, isNil := c.size(len(*v), *v == nil)
	switch {
	case isNil:
	case c.decoding:
		*v = append(make([]byte, 0, n), c.buf[:n]...)
		c.buf = c.buf[n:]
	default:
		c.buf = append(c.buf, *v...)
	}
}

// time keeps the instant, not the location; the zero time stays zero.
func (c *codec) time(v *time.Time) {
	zero := v.IsZero()
	c.bool(&zero)
	if zero {
		return
	}
	sec, nsec := v.Unix(), int64(v.Nanosecond())
	c.int64(&sec)
	c.int64(&nsec)
	if !c.decoding || c.err != nil {
		return
	}
	if nsec < 0 || nsec >= int64(time.Second) {
		c.fail()
		return
	}
	*v = time.Unix(sec, nsec)
}

func codeString[T ~string](c *codec, v *T) {
	n, _ := c.size(len(*v), false)
	if c.decoding {
		*v, c.buf = T(c.buf[:n]), c.buf[n:]
		return
	}
	c.buf = append(c.buf, *v...)
}

func codeInt[T ~int | ~int64](c *codec, v *T) {
	x := int64(*v)
	c.int64(&x)
	if int64(T(x)) != x {
		c.fail()
		return
	}
	*v = T(x)
}

func codeUint[T ~uint8 | ~uint16 | ~uint32](c *codec, v *T) {
	x := uint64(*v)
	c.uint64(&x)
	if uint64(T(x)) != x {
		c.fail()
		return
	}
	*v = T(x)
}

func codeSlice[T any](c *codec, v *[]T, elem func(*codec, *T)) {
	n, isNil := c.size(len(*v), *v == nil)
	if isNil {
		return
	}
	if !c.decoding {
		for i := range *v {
			elem(c, &(*v)[i])
		}
		return
	}
	*v = []T{}
	for range n {
		var x T
		if elem(c, &x); c.err != nil {
			return
		}
		*v = append(*v, x)
	}
}

func codeOptional[T any](c *codec, v **T, value func(*codec, *T)) {
	present := *v != nil
	c.bool(&present)
	if !present || c.err != nil {
		return
	}
	if c.decoding {
		*v = new(T)
	}
	value(c, *v)
}
