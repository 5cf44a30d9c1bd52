package runnerscripts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
)

// Request is the first line of a script's input.
type Request interface {
	SetupRequest | QueryRequest | TranscriptRequest
}

// DecodeRequest decodes the first line of a script's input and checks the fields that every request
// must have. Its errors are a [*ScriptFailure]: [FailProtocol] for another version of the protocol,
// else [FailInvalidRequest]. A field that this version does not know is refused by its name.
func DecodeRequest[T Request](line []byte) (T, error) {
	var req T
	var version struct {
		Protocol *int `json:"protocol"`
	}
	if err := json.Unmarshal(line, &version); err != nil {
		return req, invalid("send the request as one line of JSON: %v", err)
	}
	switch {
	case version.Protocol == nil:
		return req, invalid(`say which version of the protocol the request is: add "protocol":%d`, Protocol)
	case *version.Protocol != Protocol:
		return req, &ScriptFailure{Code: FailProtocol, Message: fmt.Sprintf(
			"use a runner and a host of the same release: this runner speaks version %d of the protocol and the request is version %d",
			Protocol, *version.Protocol)}
	}
	if err := strict(line, &req); err != nil {
		return req, invalid("correct the request: %v", err)
	}
	if err := checkSession(sessionOf(&req)); err != nil {
		return req, err
	}
	return req, profileOf(&req).Check()
}

// DecodeControl decodes a later line of execute-query's input. Its errors are a
// [*ScriptFailure] with [FailInvalidRequest]. A type that this version does not
// know is not an error here.
func DecodeControl(line []byte) (Control, error) {
	var c Control
	if err := strict(line, &c); err != nil {
		return c, invalid("correct the control line: %v", err)
	}
	if c.Type == "" {
		return c, invalid(`correct the control line: it has no "type"`)
	}
	return c, nil
}

func strict(line []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one value on the line")
	}
	return nil
}

func sessionOf(req any) Session {
	switch r := req.(type) {
	case *SetupRequest:
		return r.Session
	case *QueryRequest:
		return r.Session
	case *TranscriptRequest:
		return r.Session
	}
	return Session{}
}

func profileOf(req any) Profile {
	switch r := req.(type) {
	case *SetupRequest:
		return r.Profile
	case *QueryRequest:
		return r.Profile
	}
	return Profile{}
}

func checkSession(s Session) error {
	if !plainID(s.SessionID) {
		return invalid(`give "session_id" a UUID, or 1 to 128 letters, digits, "-", "_" and ".", not %q`, s.SessionID)
	}
	if s.Agent.Name == "" {
		return invalid(`name the agent in "agent":{"name":...}`)
	}
	if !path.IsAbs(s.Paths.Workspace) {
		return invalid(`give "workspace" in "paths" an absolute path, not %q`, s.Paths.Workspace)
	}
	if !path.IsAbs(s.Paths.Home) {
		return invalid(`give "home" in "paths" an absolute path, not %q`, s.Paths.Home)
	}
	return nil
}

// plainID reports whether an id can be a file name and an argument.
func plainID(id string) bool {
	if id == "" || len(id) > 128 || id[0] == '.' || id[0] == '-' {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

func invalid(format string, args ...any) *ScriptFailure {
	return &ScriptFailure{Code: FailInvalidRequest, Message: fmt.Sprintf(format, args...)}
}
