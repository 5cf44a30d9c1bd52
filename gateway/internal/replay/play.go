package replay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Player answers calls from a recording. Its methods may be called from several goroutines.
type Player struct {
	places Places
	masks  []Mask

	mu        sync.Mutex
	exchanges []exchange
	played    map[int]bool
}

// NoMatchError is a call that is not in the recording.
type NoMatchError struct {
	Call    string // the method, the API and the path
	Nearest string // the recorded text around the first difference; empty if none is comparable
	Got     string // the text of the call around that difference
}

func (e *NoMatchError) Error() string {
	if e.Nearest == "" {
		return fmt.Sprintf("replay: the recording has no %s; record the session again", e.Call)
	}
	return fmt.Sprintf("replay: the recording has no such %s; the nearest has ...%s... where this has ...%s...; record the session again, or mask the difference in the file's first line",
		e.Call, e.Nearest, e.Got)
}

// Open reads a recording. For invalid content, the error is [ErrFile].
func Open(r io.Reader, places Places) (*Player, error) {
	p := &Player{places: places, played: map[int]bool{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	lines.Scan()
	h, err := parseHeader(lines.Bytes())
	if err != nil {
		return nil, errors.Join(err, lines.Err())
	}
	p.masks = h.Masks
	if err := compile(p.masks); err != nil {
		return nil, err
	}
	for n := 2; lines.Scan(); n++ {
		var line struct {
			header
			exchange
		}
		err := json.Unmarshal(lines.Bytes(), &line)
		if err == nil && line.Format == format && line.Version == version {
			continue // the header of a program that continued the recording
		}
		e := line.exchange
		if err != nil || e.Call == "" || e.Status < 100 || e.Status > 999 {
			return nil, fmt.Errorf("%w: line %d of the recording is damaged; record the session again, or remove the line", ErrFile, n)
		}
		p.exchanges = append(p.exchanges, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return p, nil
}

// Form returns the form of a call, by which Send finds it. For a large call it takes seconds.
func (p *Player) Form(body []byte) string { return formOf(body, p.places, p.masks) }

// Send answers a call with the first unused answer recorded for it, or with the last answer if
// all are used, since agents retry. Errors are a [*NoMatchError].
func (p *Player) Send(api runnerscripts.ModelAPI, path, form string, req *http.Request) (*http.Response, error) {
	call := req.Method + " " + string(api) + path
	p.mu.Lock()
	defer p.mu.Unlock()
	last := -1
	for i, e := range p.exchanges {
		if e.Call != call || e.Form != form {
			continue
		}
		if last = i; !p.played[i] {
			break
		}
	}
	if last < 0 {
		return nil, p.noMatch(call, form)
	}
	p.played[last] = true
	return answerWith(req, p.exchanges[last], p.places), nil
}

// noMatch returns the error of a call that is not in the recording. It names the recorded call
// with the longest common prefix.
func (p *Player) noMatch(call, form string) error {
	err := &NoMatchError{Call: call}
	most := -1
	for _, e := range p.exchanges {
		if e.Call != call {
			continue
		}
		if same := common(e.Form, form); same > most {
			most = same
			err.Nearest, err.Got = around(e.Form, same), around(form, same)
		}
	}
	return err
}

// common returns the length of the common prefix of two texts, in bytes.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// around returns the text around an offset, quoted.
func around(text string, at int) string {
	return fmt.Sprintf("%q", text[max(0, at-40):min(len(text), at+80)])
}
