package server

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
)

// schemas of types whose JSON form jsonschema cannot see.
func schemas() *jsonschema.ForOptions {
	return &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage]():     {},
		reflect.TypeFor[[]byte]():              {Types: []string{"null", "string"}, ContentEncoding: "base64"},
		reflect.TypeFor[sessionapi.Duration](): {Type: "string", Description: "such as 1m30s", Pattern: `^-?[0-9]`},
		reflect.TypeFor[time.Duration]():       {Type: "integer", Description: "nanoseconds"},
		reflect.TypeFor[time.Time]():           {Type: "string", Format: "date-time"},
	}}
}

// body decodes bodies of one type. Its schema is the one in the description of the interface.
type body[T any] struct{ resolved *jsonschema.Resolved }

func newBody[T any]() (body[T], error) {
	schema, err := jsonschema.For[T](schemas())
	if err != nil {
		return body[T]{}, err
	}
	resolved, err := schema.Resolve(nil)
	return body[T]{resolved}, err
}

// decode decodes JSON strictly: unknown keys, duplicate keys and values of another type are errors that say where. No body
// is an empty object.
func (b body[T]) decode(data []byte) (v T, err error) {
	if len(data) == 0 {
		data = []byte("{}")
	}
	var instance any
	if err := json.Unmarshal(data, &instance); err != nil { // which limits the depth
		return v, invalid(err)
	}
	if err := jsonkeys.Unique(data); err != nil {
		return v, invalid(err)
	}
	if err := b.resolved.Validate(instance); err != nil {
		return v, invalid(err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, invalid(err)
	}
	return v, nil
}

func invalid(err error) error { return fmt.Errorf("%w: the body: %w", fs.ErrInvalid, err) }

// patientBody is the body of a request. Each read has a deadline, so that a client that sends nothing does not hold a
// connection. No deadline stays after a read: it would cancel the request.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(readTimeout)) // a request of a test may have none
	n, err := b.ReadCloser.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	return n, err
}

// readBody reads the body of a request, which must be JSON.
func readBody(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil || len(data) == 0 {
		return data, err
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, fmt.Errorf("%w: the body must be of the type application/json", fs.ErrInvalid)
	}
	return data, nil
}

// query is the query of an address. It remembers its first error.
type query struct {
	values url.Values
	err    error
}

// newQuery returns the query of a request, which may have the named keys only.
func newQuery(r *http.Request, names []string) *query {
	q := new(query)
	if q.values, q.err = url.ParseQuery(r.URL.RawQuery); q.err != nil {
		q.err = fmt.Errorf("%w: the query: %w", fs.ErrInvalid, q.err)
	}
	for name := range q.values {
		if !slices.Contains(names, name) {
			q.fail(name, "there is no such key; there are: %s", strings.Join(names, ", "))
		}
	}
	return q
}

func (q *query) fail(name, format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: the query: %s: %s", fs.ErrInvalid, name, fmt.Sprintf(format, args...))
	}
}

// text returns a value that may be there once.
func (q *query) text(name string) string {
	if len(q.values[name]) > 1 {
		q.fail(name, "duplicate key; keep one")
	}
	return q.values.Get(name)
}

// number returns a number that is not negative; zero for none.
func (q *query) number(name string) uint64 {
	text := q.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		q.fail(name, "%q is no number", text)
	}
	return n
}

// flag returns whether a value is true.
func (q *query) flag(name string) bool {
	text := q.text(name)
	set, err := strconv.ParseBool(text)
	if err != nil && text != "" {
		q.fail(name, "%q is neither true nor false", text)
	}
	return set
}

// instant returns a time; the zero time for none.
func (q *query) instant(name string) time.Time {
	text := q.text(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		q.fail(name, "%q is no time as in RFC 3339", text)
	}
	return t
}
