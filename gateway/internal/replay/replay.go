// Package replay records the model calls of a session in a file, and answers calls from it.
//
// The file has one JSON value on each line: a header, then the calls in the order in which
// their answers ended. A call is matched by its form: the model and the conversation, with
// everything masked that differs between runs. The form does not include the agent's system
// prompt and tools.
package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

const (
	format  = "agentenv-replay"
	version = 1

	maxHeader = 1 << 20   // in bytes
	maxLine   = 256 << 20 // of a file, in bytes
	maxAnswer = 64 << 20  // of a recorded answer, in bytes
)

// ErrFile is a file that is not a recording of this version. It wraps fs.ErrInvalid.
var ErrFile = fmt.Errorf("replay: %w", fs.ErrInvalid)

var errNone = fmt.Errorf("%w: the file is no recording; make one with --record and a new file", ErrFile)

// header is the first line.
type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Masks   []Mask `json:"masks"`
}

// parseHeader reads the first line.
func parseHeader(line []byte) (h header, err error) {
	if json.Unmarshal(line, &h) != nil || h.Format != format {
		return h, errNone
	}
	if h.Version != version {
		return h, fmt.Errorf("%w: the recording has version %d, and this program reads %d; record the session again", ErrFile, h.Version, version)
	}
	return h, nil
}

// CheckAppend returns an [ErrFile] if r is neither empty nor a recording that this program can
// continue.
func CheckAppend(r io.Reader) error {
	line, err := bufio.NewReaderSize(r, maxHeader).ReadSlice('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		return nil
	}
	if err != nil {
		return errNone
	}
	_, err = parseHeader(line)
	return err
}

// Mask replaces the parts of a call that differ between runs.
type Mask struct {
	Pattern string `json:"pattern"` // of package regexp
	With    string `json:"with"`

	compiled *regexp.Regexp
}

// exchange is a call and its answer.
type exchange struct {
	Call        string `json:"call"` // the method, the API and the path below it
	Form        string `json:"form"`
	Status      int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
	Answer      string `json:"answer"`
}

// The names of months and days as agents and ls print them.
const (
	months = `(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*`
	days   = `(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*`
)

// standard returns the masks of a new recording. They match JSON, in which a line break is \n.
func standard() []Mask {
	var masks []Mask
	for _, block := range []string{"system-reminder", "environment_context", "env", "session_context", "permissions instructions"} {
		masks = append(masks, Mask{Pattern: "<" + block + ">.*?</" + block + ">", With: "<" + block + ">"})
	}
	return append(masks,
		Mask{Pattern: `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`, With: "<id>"},
		Mask{Pattern: `\b[0-9a-f]{32,}\b`, With: "<id>"},
		Mask{Pattern: `\bChunk ID: [0-9a-f]+`, With: "Chunk ID: <id>"},
		Mask{Pattern: `\b20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?`, With: "<date>"},
		Mask{Pattern: `\b(?:` + days + `,? )?` + months + ` +\d{1,2}(?:,? +(?:\d\d:\d\d(?::\d\d)?|20\d\d))*\b`, With: "<date>"},
		Mask{Pattern: `1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?`, With: "<time>"}, // since 1970, in seconds or milliseconds
		Mask{Pattern: `\b\d\d?:\d\d:\d\d\b`, With: "<time>"},
		Mask{Pattern: `\b\d+(?:\.\d+)? ?(?:ms|s|seconds)\b`, With: "<duration>"},
		Mask{Pattern: `\b\d+\.\d+\.\d+\b`, With: "<version>"},
		Mask{Pattern: `/tmp/[\w./-]+`, With: "<tmp>"},
	)
}

// compile compiles the patterns of the masks.
func compile(masks []Mask) error {
	for i := range masks {
		var err error
		if masks[i].compiled, err = regexp.Compile(masks[i].Pattern); err != nil {
			return fmt.Errorf("%w: mask %d: %w", ErrFile, i+1, err)
		}
	}
	return nil
}

// Places maps paths of the sandbox to placeholders. A recording contains the placeholders; a
// replayed answer contains the paths of the new sandbox.
type Places map[string]string

// ordered returns the paths, longest first, because one may contain another.
func (p Places) ordered() []string {
	return slices.SortedFunc(maps.Keys(p), func(a, b string) int { return len(b) - len(a) })
}

// mask replaces the paths with their placeholders.
func (p Places) mask(text string) string {
	for _, path := range p.ordered() {
		text = strings.ReplaceAll(text, path, p[path])
	}
	return text
}

// unmask replaces the placeholders with the paths.
func (p Places) unmask(text string) string {
	for _, path := range p.ordered() {
		text = strings.ReplaceAll(text, p[path], path)
	}
	return text
}

// formOf returns the form of a call; see the package comment.
func formOf(body []byte, places Places, masks []Mask) string {
	var call map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	text := string(body)
	if dec.Decode(&call) == nil {
		kept := map[string]any{}
		for _, name := range []string{"model", "messages", "input", "contents"} {
			if v, ok := call[name]; ok {
				kept[name] = v
			}
		}
		var out strings.Builder
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		if enc.Encode(kept) == nil { // always
			text = strings.TrimSpace(out.String())
		}
	}
	text = places.mask(text)
	for _, m := range masks {
		text = m.compiled.ReplaceAllLiteralString(text, m.With)
	}
	return text
}

// answerWith returns the HTTP response for a recorded answer.
func answerWith(r *http.Request, e exchange, places Places) *http.Response {
	text := places.unmask(e.Answer)
	header := http.Header{}
	if e.ContentType != "" {
		header.Set("Content-Type", e.ContentType)
	}
	return &http.Response{
		Status: http.StatusText(e.Status), StatusCode: e.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)), Request: r,
	}
}
