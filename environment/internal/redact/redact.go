// Package redact redacts secrets in what programs print, and keeps the end of the output.
// Package secrets decides which values are secrets.
package redact

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// Redactor redacts secrets. The zero value knows none.
type Redactor struct {
	replacer *strings.Replacer
	starts   *[256][]string // the secrets by their first byte, the longest first; nil for none
	plain    *[256]bool     // JSON string bytes that begin no secret or escape and do not end the string
	longest  int            // of the secrets, in bytes
}

// New returns a Redactor for the secrets. It ignores empty ones.
func New(secrets []string) Redactor {
	secrets = slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return s == "" })
	if len(secrets) == 0 {
		return Redactor{}
	}
	// The longest first, because one secret may be a prefix of another.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	r := Redactor{starts: new([256][]string), longest: len(secrets[0])}
	pairs := make([]string, 0, 2*len(secrets))
	for _, secret := range secrets {
		pairs = append(pairs, secret, Redacted)
		r.starts[secret[0]] = append(r.starts[secret[0]], secret)
	}
	r.replacer = strings.NewReplacer(pairs...)
	r.plain = new([256]bool)
	for c := range r.plain {
		r.plain[c] = c != '"' && c != '\\' && r.starts[c] == nil
	}
	return r
}

// Text returns s without secrets.
func (r Redactor) Text(s string) string {
	if r.replacer == nil {
		return s
	}
	return r.replacer.Replace(s)
}

// Empty reports whether no secret is known.
func (r Redactor) Empty() bool { return r.starts == nil }

// JSON redacts secrets in the strings of valid JSON, however they are escaped. It keeps keys that
// consist of letters and underscores: those are the protocol's, without which nobody can read the
// value. It reads the value once, and returns the same value if there is no secret in it.
func (r Redactor) JSON(value []byte) []byte {
	if r.starts == nil {
		return value
	}
	var safe []byte
	copied, inside := 0, false
	begin, kept, from := 0, 0, 0 // of the string: its offset, and then len(safe) and copied
	for i := 0; i < len(value); {
		if !inside {
			quote := bytes.IndexByte(value[i:], '"')
			if quote < 0 {
				break
			}
			i, inside = i+quote+1, true
			begin, kept, from = i, len(safe), copied
			continue
		}
		for i < len(value) && r.plain[value[i]] {
			i++
		}
		if i == len(value) {
			break
		}
		first, next := value[i], i+1
		switch first {
		case '"':
			if copied > from && isProtocols(value[begin:i], value[next:]) {
				safe, copied = safe[:kept], from
			}
			i, inside = next, false
			continue
		case '\\':
			var char [utf8.UTFMax]byte
			_, next = unescape(value, i, &char)
			first = char[0]
		}
		if secrets := r.starts[first]; secrets != nil {
			if end := match(value, i, secrets); end > 0 {
				safe = append(append(safe, value[copied:i]...), Redacted...)
				copied, next = end, end
			}
		}
		i = next
	}
	if copied == 0 { // also after a key was kept
		return value
	}
	return append(safe, value[copied:]...)
}

// isProtocols reports whether a JSON string is a key of letters and underscores. rest follows it.
func isProtocols(text, rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return len(rest) > 0 && rest[0] == ':' && !bytes.ContainsFunc(text, func(r rune) bool {
		return r != '_' && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// match returns the end of the first of the secrets that is in a JSON string at i, or 0 if none
// is.
func match(value []byte, i int, secrets []string) (end int) {
next:
	for _, secret := range secrets {
		at, rest := i, secret
		for rest != "" {
			if at >= len(value) || value[at] == '"' {
				continue next
			}
			if value[at] != '\\' {
				if value[at] != rest[0] {
					continue next
				}
				at, rest = at+1, rest[1:]
				continue
			}
			var char [utf8.UTFMax]byte
			n, after := unescape(value, at, &char)
			if !strings.HasPrefix(rest, string(char[:n])) {
				continue next
			}
			at, rest = after, rest[n:]
		}
		return at
	}
	return 0
}

// unescape decodes the escape at i of a JSON string into char. It returns the number of bytes in
// char and the end of the escape.
func unescape(value []byte, i int, char *[utf8.UTFMax]byte) (n, end int) {
	if i+1 >= len(value) {
		return 0, len(value)
	}
	if c := value[i+1]; c != 'u' {
		char[0] = c
		if at := strings.IndexByte("bfnrt", c); at >= 0 {
			char[0] = "\b\f\n\r\t"[at]
		}
		return 1, i + 2
	}
	r := hexRune(value, i+2)
	end = min(i+6, len(value))
	if utf16.IsSurrogate(r) && end+1 < len(value) && value[end] == '\\' && value[end+1] == 'u' {
		if pair := utf16.DecodeRune(r, hexRune(value, end+2)); pair != utf8.RuneError {
			r, end = pair, min(end+6, len(value))
		}
	}
	return utf8.EncodeRune(char[:], r), end
}

// hexRune reads four hexadecimal digits.
func hexRune(value []byte, i int) rune {
	if i+4 > len(value) {
		return utf8.RuneError
	}
	n, err := strconv.ParseUint(string(value[i:i+4]), 16, 32)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

// maxTail is how much of a script's standard error is kept: 16 KiB.
const maxTail = 16 << 10

// Tail keeps the end of what is written to it. It is not a tail.Buffer because it must know
// whether something was cut off: only then can it begin with part of a secret.
type Tail struct {
	Hide Redactor
	mu   sync.Mutex
	buf  []byte // up to twice as much, so that few secrets are cut
	cut  bool   // something came before buf
}

// Write implements io.Writer.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-2*maxTail):]...)
	t.cut = t.cut || len(b) > 2*maxTail
	if over := len(t.buf) - 2*maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(b), nil
}

// String returns the end, as UTF-8 and without secrets.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.Hide.Text(string(t.buf))
	if t.cut {
		// Drop what may be the rest of a secret that was cut.
		s = s[min(len(s), t.Hide.longest):]
	}
	return strings.ToValidUTF8(s[max(0, len(s)-maxTail):], "\uFFFD")
}
