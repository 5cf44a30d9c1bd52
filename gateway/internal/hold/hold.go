// Package hold holds the tool calls in a model's answer until they are judged. A refused call never reaches the agent: a
// text that says so takes its place. Texts of the model pass as they come.
//
// hold.go reads answers; anthropic.go, openai.go and gemini.go know the APIs.
package hold

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxAnswer limits an answer without a stream, an event, and the events of one held call, in bytes.
const maxAnswer = 32 << 20

var errTooLarge = errors.New("the answer of the model is too large to judge its tool calls")

// Judge waits until a tool call may pass or is refused, with a text for the agent; empty lets it pass. The input is what
// the model has written, which may be no JSON.
type Judge func(tool string, input json.RawMessage) (refusal string)

// object is a JSON object.
type object = map[string]any

// filter judges the calls in the answers of one API.
type filter interface {
	// event returns the events to send in place of one event. name is its field "event", empty for none.
	event(name string, data object) ([]event, error)
	// whole changes an answer without a stream.
	whole(answer object)
}

// event is a server-sent event.
type event struct {
	name string
	data object
}

// Answer returns the body of an answer without refused calls. mediaType is that of the answer, path that of the request.
// What cannot be read is an error of Read: a call could be in it.
func Answer(api runnerscripts.ModelAPI, path, mediaType string, body io.ReadCloser, judge Judge) io.ReadCloser {
	f := filterOf(api, path, judge)
	out, in := io.Pipe()
	go func() { // it ends when the body or the reader of the pipe ends
		var err error
		if strings.HasPrefix(mediaType, "text/event-stream") {
			err = stream(f, body, in)
		} else {
			err = whole(f, body, in)
		}
		_ = in.CloseWithError(err)
	}()
	return &answer{out, body}
}

func filterOf(api runnerscripts.ModelAPI, path string, judge Judge) filter {
	switch {
	case api == runnerscripts.APIAnthropic:
		return &anthropic{judge: judge}
	case api == runnerscripts.APIGemini:
		return gemini{judge}
	case strings.HasSuffix(path, "/chat/completions"):
		return &chat{judge: judge}
	}
	return &responses{judge: judge}
}

// answer is the filtered body.
type answer struct {
	*io.PipeReader
	body io.Closer
}

// Close also closes the body of the model's answer.
func (a *answer) Close() error { return errors.Join(a.PipeReader.Close(), a.body.Close()) }

// whole filters an answer without a stream.
func whole(f filter, body io.Reader, to io.Writer) error {
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(data) > maxAnswer:
		return errTooLarge
	}
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) > 0 && trimmed[0] == '[' { // Gemini's stream without server-sent events
		var list []object
		if err := json.Unmarshal(trimmed, &list); err != nil {
			return unreadable(err)
		}
		for _, one := range list {
			f.whole(one)
		}
		return json.NewEncoder(to).Encode(list)
	}
	one, err := parse(data)
	if err != nil {
		return unreadable(err)
	}
	f.whole(one)
	return json.NewEncoder(to).Encode(one)
}

func unreadable(err error) error {
	return fmt.Errorf("the answer of the model cannot be read, to judge its tool calls: %w", err)
}

// parse keeps numbers as they are.
func parse(data []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var o object
	if err := dec.Decode(&o); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something is behind the object")
	}
	return o, nil
}

// stream filters server-sent events.
func stream(f filter, body io.Reader, to io.Writer) error {
	lines := bufio.NewReader(body)
	var name string
	var data, raw []byte
	for {
		line, err := lines.ReadBytes('\n')
		if len(raw)+len(line) > maxAnswer {
			return errTooLarge
		}
		raw = append(raw, line...)
		text := strings.TrimRight(string(line), "\r\n")
		field, value, _ := strings.Cut(text, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case strings.Contains(text, "\r"): // it ends a line for some readers
			return unreadable(errors.New("a line has a carriage return"))
		case strings.HasPrefix(text, "\ufeff"): // readers skip it at the start
			return unreadable(errors.New("a line begins with a byte order mark"))
		case field == "event":
			name = value
		case field == "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
		}
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		if text == "" || ended { // some readers use an event without its blank line
			if err := send(f, name, data, raw, to); err != nil {
				return err
			}
			name, data, raw = "", nil, nil
		}
		if ended {
			return nil
		}
	}
}

// send sends what takes the place of an event. raw is the event as it came.
func send(f filter, name string, data, raw []byte, to io.Writer) error {
	if len(data) == 0 || string(data) == "[DONE]" {
		_, err := to.Write(raw)
		return err
	}
	o, err := parse(data)
	if err != nil {
		return unreadable(err)
	}
	before, err := json.Marshal(o)
	if err != nil {
		return err
	}
	list, err := f.event(name, o)
	if err != nil {
		return err
	}
	if len(list) == 1 && list[0].name == name {
		after, err := json.Marshal(list[0].data)
		if err == nil && bytes.Equal(before, after) {
			_, err = to.Write(raw) // as the model has written it
			return err
		}
	}
	var out bytes.Buffer
	for _, e := range list {
		after, err := json.Marshal(e.data)
		if err != nil {
			return err
		}
		if e.name != "" {
			fmt.Fprintf(&out, "event: %s\n", e.name)
		}
		fmt.Fprintf(&out, "data: %s\n\n", after)
	}
	_, err = to.Write(out.Bytes())
	return err
}

// held are events that wait for a judgment.
type held struct {
	events []event
	size   int
}

func (h *held) add(e event) error {
	data, err := json.Marshal(e.data)
	if err != nil {
		return err
	}
	if h.size += len(data); h.size > maxAnswer {
		return errTooLarge
	}
	h.events = append(h.events, e)
	return nil
}

// The fields of objects; the zero value for those that are missing or of another type.

func text(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

func child(o object, key string) object {
	c, _ := o[key].(object)
	return c
}

func children(o object, key string) []any {
	list, _ := o[key].([]any)
	return list
}

// number returns an index as a text, which identifies a part of an answer.
func number(o object, key string) string { return fmt.Sprint(o[key]) }

// encoded returns a value as the input of a tool.
func encoded(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		return nil // then it is judged as malformed
	}
	return data
}
