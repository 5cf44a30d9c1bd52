package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// messageTypes returns one of every message.
func messageTypes() []message {
	return []message{
		&hello{}, &wireError{}, &empty{}, &execRequest{}, &reattachRequest{}, &attachRequest{}, &runRequest{},
		&runReply{}, &endpointRequest{}, &endpoints{}, &announcement{}, &acceptRequest{}, &pathRequest{}, &writeRequest{}, &fileHeader{}, &fileFailure{}, &listRequest{}, &listItem{},
		&mkdirRequest{}, &removeRequest{}, &moveRequest{}, &packRequest{}, &watchRequest{}, &controlRequest{},
		&controlReply{}, &exitReport{}, &fileInfoReply{}, &stateReply{}, &terminateReply{}, &eventFrame{}, &startedReply{},
		&identifyRequest{}, &identifyReply{},
	}
}

func zeroOf(m message) message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message) }

// fillValue sets every field below v to something that is not its zero value.
func fillValue(t *testing.T, v reflect.Value, n *int64) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(t, v.Elem(), n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(*n, *n)))
			return
		}
		for i := range v.NumField() {
			fillValue(t, v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fillValue(t, v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("%d \xff", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-*n)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) & 0xff)
	default:
		t.Fatalf("the test cannot fill a %v", v.Type())
	}
}

func TestEveryFieldOfEveryMessageRoundTrips(t *testing.T) {
	for _, m := range messageTypes() {
		t.Run(fmt.Sprintf("%T", m), func(t *testing.T) {
			var n int64
			fillValue(t, reflect.ValueOf(m).Elem(), &n)
			for _, want := range []message{m, zeroOf(m)} {
				got, b := zeroOf(m), encode(want)
				if err := decode(b, got); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
				for i := range b { // truncated at every byte
					if err := decode(b[:i], zeroOf(m)); !errors.Is(err, errEncoding) {
						t.Fatalf("the first %d of %d bytes: %v", i, len(b), err)
					}
				}
				if err := decode(append(bytes.Clone(b), 0), zeroOf(m)); !errors.Is(err, errEncoding) {
					t.Errorf("with a byte too many: %v", err)
				}
			}
		})
	}
}

func TestNilAndEmptyContentDiffer(t *testing.T) {
	for _, want := range [][]byte{nil, {}} {
		var got eventFrame
		if err := decode(encode(&eventFrame{primitives.WatchEvent{Content: want}}), &got); err != nil {
			t.Fatal(err)
		}
		if (got.Event.Content == nil) != (want == nil) {
			t.Errorf("%#v became %#v", want, got.Event.Content)
		}
	}
}

// declaredSentinels returns the names of the errors that package primitives
// declares.
func declaredSentinels(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var names []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && strings.HasPrefix(spec.Names[0].Name, "Err") && len(spec.Values) == 1 {
				names = append(names, spec.Names[0].Name)
			}
			return true
		})
	}
	return names
}

func TestEverySentinelHasACode(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	names := declaredSentinels(t)
	if len(names) < 13 {
		t.Fatalf("only %d sentinels found: %v", len(names), names)
	}
	for _, name := range names {
		if !strings.Contains(string(source), ", primitives."+name+"}") {
			t.Errorf("primitives.%s has no code: it would lose its identity on the way", name)
		}
	}
	seen := map[errCode]bool{}
	for _, s := range sentinels() {
		if seen[s.code] {
			t.Errorf("code %d is used twice", s.code)
		}
		seen[s.code] = true
	}
}

// travel encodes an error and decodes it again.
func travel(t *testing.T, err error, backend string) error {
	t.Helper()
	var w wireError
	if derr := decode(encode(toWire(err)), &w); derr != nil {
		t.Fatal(derr)
	}
	return fromWire(&w, backend)
}

func TestSentinelsKeepTheirIdentity(t *testing.T) {
	for _, s := range sentinels() {
		for _, sent := range []error{
			s.err,
			fmt.Errorf("around: %w", s.err),
			&primitives.Error{Op: "stat", Backend: "local", Target: "a b", Err: s.err},
			fmt.Errorf("around: %w", &primitives.Error{Op: "stat", Backend: "local", Target: "x", Err: fmt.Errorf("inner: %w", s.err)}),
		} {
			got := travel(t, sent, "")
			if got.Error() != sent.Error() {
				t.Errorf("%q became %q", sent, got)
			}
			want, has := errors.AsType[*primitives.Error](sent)
			where, ok := errors.AsType[*primitives.Error](got)
			if ok != has || (has && (where.Op != want.Op || where.Backend != want.Backend || where.Target != want.Target)) {
				t.Errorf("%#v became %#v", want, where)
			}
			for _, other := range sentinels() {
				if errors.Is(got, other.err) != errors.Is(sent, other.err) {
					t.Errorf("%q: errors.Is %v differs", sent, other.err)
				}
			}
		}
	}
}

func TestErrorsKeepAllTheirCauses(t *testing.T) {
	sent := &primitives.Error{
		Op: "exec", Backend: "local", Target: "ls",
		Err: fmt.Errorf("%w: %w", primitives.ErrWorkingDir, &fs.PathError{Op: "chdir", Path: "/gone", Err: fs.ErrNotExist}),
	}
	got := travel(t, sent, "docker")
	where, ok := errors.AsType[*primitives.Error](got)
	switch {
	case !errors.Is(got, primitives.ErrWorkingDir), !errors.Is(got, fs.ErrNotExist), errors.Is(got, context.Canceled):
		t.Errorf("the causes of %q are not those of %q", got, sent)
	case !ok, where.Backend != "docker", where.Op != "exec", where.Target != "ls":
		t.Errorf("got %#v", where)
	case got.Error() != strings.Replace(sent.Error(), "local", "docker", 1):
		t.Errorf("text %q", got)
	}
}

func TestLongErrorTextIsCut(t *testing.T) {
	got := travel(t, errors.New(strings.Repeat("x", 1<<20)), "")
	if n := len(got.Error()); n != maxErrorText {
		t.Errorf("%d bytes of text", n)
	}
}

func FuzzDecode(f *testing.F) {
	for i, m := range messageTypes() {
		f.Add(uint8(i), encode(m))
	}
	f.Add(uint8(13), []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		all := messageTypes()
		m := all[int(kind)%len(all)]
		if decode(b, m) != nil {
			return
		}
		// Decoding is stable: encoding the result and decoding that gives the same.
		again := zeroOf(m)
		if err := decode(encode(m), again); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%#v\nbecame %#v, %v", m, again, err)
		}
	})
}
