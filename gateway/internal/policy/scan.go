package policy

import (
	"bytes"
	"encoding/json"
)

// Limits of a call. They are far above what agents send: a model reads about one token for each
// value.
const (
	maxValues = 1 << 20 // and names
	maxDepth  = 1000
	maxName   = 256 // bytes of a name that is read, as it is written
)

// scanner reads JSON in one pass, without a copy. Its methods that read a value refuse damaged
// JSON, and begin at the value or at white space before it.
type scanner struct {
	data  []byte
	pos   int
	depth int
	name  int          // where the last name of an object begins
	read  int          // values and names
	stop  func() error // returns why reading must end
}

func damaged(why string) error { return refuse("the body is damaged JSON: %s", why) }

// next skips white space and returns the byte there; 0 at the end.
func (s *scanner) next() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// step counts a value or name.
func (s *scanner) step() error {
	s.read++
	switch {
	case s.read > maxValues:
		return refuse("the call has more than %d values", maxValues)
	case s.read%1024 == 0:
		return s.stop()
	}
	return nil
}

// value skips a value.
func (s *scanner) value() error {
	switch c := s.next(); c {
	case '{':
		return s.object(nil)
	case '[':
		return s.array(nil)
	case '"':
		_, err := s.text()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

// object reads an object. For each member it calls each, which must read the value; nil skips
// all. The name has its quotes.
func (s *scanner) object(each func(name []byte) error) error {
	return s.list('{', '}', func() error {
		if s.next() != '"' {
			return damaged("a name is missing")
		}
		begin := s.pos
		name, err := s.text()
		if err != nil {
			return err
		}
		s.name = begin
		if s.next() != ':' {
			return damaged("a colon is missing")
		}
		s.pos++
		if each == nil {
			return s.value()
		}
		return each(name)
	})
}

// array reads an array. For each element it calls each, which must read the element; nil skips
// all.
func (s *scanner) array(each func() error) error {
	if each == nil {
		each = s.value
	}
	return s.list('[', ']', each)
}

func (s *scanner) list(first, last byte, each func() error) error {
	if s.next() != first {
		return damaged("an object or a list is missing")
	}
	if s.depth++; s.depth > maxDepth {
		return refuse("the call has more than %d levels", maxDepth)
	}
	if err := s.step(); err != nil {
		return err
	}
	s.pos++
	for c := s.next(); c != last; {
		if err := each(); err != nil {
			return err
		}
		switch c = s.next(); c {
		case last:
		case ',':
			s.pos++
			if s.next() == last {
				return damaged("a value is missing")
			}
		default:
			return damaged("a comma is missing")
		}
	}
	s.pos++
	s.depth--
	return nil
}

// text reads a string and returns it as it is written, with its quotes.
func (s *scanner) text() ([]byte, error) {
	for i := s.pos + 1; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			text := s.data[s.pos : i+1]
			s.pos = i + 1
			return text, s.step()
		case c == '\\':
			n := escape(s.data[i:])
			if n == 0 {
				return nil, damaged("an escape is wrong")
			}
			i += n - 1
		case c < ' ':
			return nil, damaged("a string has a control character")
		}
	}
	return nil, damaged("a string has no end")
}

// escape returns the length of the escape at the start of b; 0 if it is wrong.
func escape(b []byte) int {
	switch {
	case len(b) < 2:
	case b[1] == 'u':
		if _, ok := hex(b); ok {
			return 6
		}
	case bytes.IndexByte([]byte(`"\/bfnrt`), b[1]) >= 0:
		return 2
	}
	return 0
}

// hex returns the character of \uXXXX at the start of b.
func hex(b []byte) (r rune, ok bool) {
	if len(b) < 6 {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return damaged("a value is wrong")
	}
	s.pos += len(word)
	return s.step()
}

func (s *scanner) number() error {
	s.has('-')
	ok := s.has('0') || s.digits()
	if ok && s.has('.') {
		ok = s.digits()
	}
	if ok && (s.has('e') || s.has('E')) {
		_ = s.has('+') || s.has('-')
		ok = s.digits()
	}
	if !ok {
		return damaged("a value is missing or wrong")
	}
	return s.step()
}

// has reads c if it is the next byte.
func (s *scanner) has(c byte) bool {
	if s.pos == len(s.data) || s.data[s.pos] != c {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) digits() bool {
	from := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > from
}

// decode returns the text of a string; ok is false if it is too long for a name.
func decode(text []byte) (_ string, ok bool) {
	if len(text) > maxName {
		return "", false
	}
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1]), true
	}
	var decoded string
	err := json.Unmarshal(text, &decoded)
	return decoded, err == nil
}
