package runnerscripts

import (
	"encoding/binary"
	"math/bits"
)

// The scanner below accepts only JSON that encoding/json accepts too. It may refuse valid but
// unusual JSON (deep nesting): callers then let encoding/json decide. All functions return the
// index after the scanned text, or refused.
const (
	refused   = -1
	mostDepth = 500
)

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// scanValue scans the value that starts at b[i].
func scanValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > mostDepth {
		return refused
	}
	switch c := b[i]; {
	case c == '"':
		return scanString(b, i)
	case c == '{':
		return scanObject(b, i, depth+1)
	case c == '[':
		return scanArray(b, i, depth+1)
	case c == '-' || c >= '0' && c <= '9':
		return scanNumber(b, i)
	case c == 't':
		return scanLiteral(b, i, "true")
	case c == 'f':
		return scanLiteral(b, i, "false")
	case c == 'n':
		return scanLiteral(b, i, "null")
	}
	return refused
}

func scanLiteral(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return refused
	}
	return i + len(word)
}

func scanObject(b []byte, i, depth int) int {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return refused
		}
		if i = scanString(b, i); i == refused {
			return refused
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return refused
		}
		if i = scanValue(b, skipSpace(b, i+1), depth); i == refused {
			return refused
		}
		i = skipSpace(b, i)
		switch {
		case i >= len(b):
			return refused
		case b[i] == '}':
			return i + 1
		case b[i] != ',':
			return refused
		}
		i = skipSpace(b, i+1)
	}
}

func scanArray(b []byte, i, depth int) int {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = scanValue(b, i, depth); i == refused {
			return refused
		}
		i = skipSpace(b, i)
		switch {
		case i >= len(b):
			return refused
		case b[i] == ']':
			return i + 1
		case b[i] != ',':
			return refused
		}
		i = skipSpace(b, i+1)
	}
}

func scanNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return refused
	case b[i] == '0':
		i++
	default:
		if i = scanDigits(b, i); i == refused {
			return refused
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = scanDigits(b, i+1); i == refused {
			return refused
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return scanDigits(b, i)
	}
	return i
}

// scanDigits scans at least one digit.
func scanDigits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == start {
		return refused
	}
	return i
}

// scanString scans the string whose opening quote is b[i].
func scanString(b []byte, i int) int {
	for i++; ; i++ {
		if i = plainEnd(b, i); i >= len(b) {
			return refused
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			if i = scanEscape(b, i); i == refused {
				return refused
			}
		default: // a control character
			return refused
		}
	}
}

// plainEnd returns the index of the first byte from b[i] on that is a quote, a
// backslash or a control character, or len(b). It looks at eight bytes at once:
// in a word x-lo&^x&hi has the high bit of the first zero byte as its lowest bit.
func plainEnd(b []byte, i int) int {
	const (
		lo        = 0x0101010101010101
		hi        = 0x8080808080808080
		quote     = lo * '"'
		backslash = lo * '\\'
		space     = lo * ' '
	)
	for ; len(b)-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		q, s := x^quote, x^backslash
		if m := ((q-lo)&^q | (s-lo)&^s | (x-space)&^x) & hi; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return i
}

// scanEscape scans the escape whose backslash is b[i] and returns the index of
// its last byte.
func scanEscape(b []byte, i int) int {
	if i++; i >= len(b) {
		return refused
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i
	case 'u':
		if len(b)-i < 5 {
			return refused
		}
		for _, c := range b[i+1 : i+5] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return refused
			}
		}
		return i + 4
	}
	return refused
}

// countValues returns roughly how many values of arrays and objects a line holds: the number of
// commas outside of strings.
func countValues(b []byte) (n int) {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case ',':
			n++
		case '"':
			for i = plainEnd(b, i+1); i < len(b) && b[i] != '"'; i = plainEnd(b, i) {
				if i++; b[i-1] == '\\' {
					i++
				}
			}
		}
	}
	return n
}
