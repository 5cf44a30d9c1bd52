package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// hello returns the first message of Go's TLS client.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(t.Context()) //nolint:gosec // it has no other side
		_ = near.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(far, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(far, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// split splits a record into records of a few bytes.
func split(record []byte) []byte {
	var out []byte
	for body := record[5:]; len(body) > 0; {
		n := min(7, len(body))
		out = append(append(out, record[0], record[1], record[2], 0, byte(n)), body[:n]...)
		body = body[n:]
	}
	return out
}

func TestCheckHello(t *testing.T) {
	t.Parallel()
	named, other, none := hello(t, "a.example"), hello(t, "b.example"), hello(t, "")
	target := Target{"a.example", 443}
	for name, c := range map[string]struct {
		data   []byte
		target Target
		why    string // empty means no error
	}{
		"its name":                 {named, target, ""},
		"in many records":          {split(named), target, ""},
		"with data behind it":      {append(bytes.Clone(named), "more"...), target, ""},
		"in capitals":              {hello(t, "A.Example"), target, ""},
		"an address":               {none, Target{"93.184.216.34", 443}, ""},
		"a name for an address":    {named, Target{"93.184.216.34", 443}, `"a.example"`},
		"another name":             {other, target, `"b.example"`},
		"another, in many records": {split(other), target, `"b.example"`},
		"no name":                  {none, target, "does not say which host"},
		"plain HTTP":               {[]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), target, "not TLS"},
		"SSH":                      {[]byte("SSH-2.0-OpenSSH\r\n"), target, "not TLS"},
		"cut":                      {named[:len(named)-1], target, "cannot be read"},
		"a record of 64 KiB":       {append([]byte{22, 3, 1, 255, 255}, make([]byte, 65535)...), target, "cannot be read"},
		"a message of 16 MiB":      {append([]byte{22, 3, 1, 64, 0, 1, 255, 255, 255}, make([]byte, 16380)...), target, "cannot be read"},
		"empty records":            {bytes.Repeat([]byte{22, 3, 1, 0, 0}, 32<<10), target, "cannot be read"},
		"an alert":                 {UnrecognizedName, target, "not TLS"},
	} {
		for kind, r := range map[string]io.Reader{"whole": bytes.NewReader(c.data), "by bytes": iotest.OneByteReader(bytes.NewReader(c.data))} {
			got, err := CheckHello(t.Context(), r, c.target)
			rest, _ := io.ReadAll(r)
			refused, isRefused := errors.AsType[*HelloError](err)
			switch {
			case c.why == "" && (err != nil || !bytes.Equal(append(got, rest...), c.data)):
				t.Errorf("%s, %s: %v, %d of %d bytes", name, kind, err, len(got), len(c.data))
			case c.why != "" && (!isRefused || !strings.Contains(refused.Why, c.why)):
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
	if _, err := CheckHello(t.Context(), strings.NewReader(""), target); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v", err)
	}
	broken := errors.New("broken")
	if _, err := CheckHello(t.Context(), iotest.ErrReader(broken), target); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

// FuzzCheckHello looks for input that crashes CheckHello, that it does not return in full, or
// that it accepts although a server reads another name from it.
func FuzzCheckHello(f *testing.F) {
	for _, name := range []string{"a.example", "b.example", ""} {
		f.Add(hello(f, name))
		f.Add(split(hello(f, name)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		got, err := CheckHello(t.Context(), r, Target{"a.example", 443})
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		if !bytes.Equal(append(got, rest...), data) {
			t.Fatal("what was read is not what came")
		}
		if !bytes.Contains(bytes.ToLower(joined(data)), []byte("a.example")) {
			t.Fatal("the name is not in it")
		}
	})
}

// joined returns the content of the records.
func joined(data []byte) []byte {
	var all []byte
	for len(data) >= 5 {
		n := min(int(data[3])<<8|int(data[4]), len(data)-5)
		all, data = append(all, data[5:5+n]...), data[5+n:]
	}
	return all
}
