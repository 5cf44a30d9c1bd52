package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// failure is an error for a client.
type failure struct {
	status int
	detail any // a text, or a coordapi.Detail
	err    error
}

func (f *failure) Error() string {
	switch d := f.detail.(type) {
	case coordapi.Detail:
		return d.Error + ": " + d.Message
	default:
		return fmt.Sprint(d)
	}
}

func (f *failure) Unwrap() error { return f.err }

// failf returns an error that is a text.
func failf(status int, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &failure{status: status, detail: err.Error(), err: errors.Unwrap(err)}
}

// named returns an error with a name.
func named(status int, name, format string, args ...any) error {
	return &failure{status: status, detail: coordapi.Detail{Error: name, Message: fmt.Sprintf(format, args...)}}
}

func noSession(id string) error {
	return failf(http.StatusNotFound, "Session %q not found", id)
}

// body returns the body of the answer with an error, and its status. An error that is none of a client's has a number only.
func (f *failure) body() []byte {
	data, err := json.Marshal(map[string]any{"detail": f.detail})
	if err != nil {
		data = []byte(`{"detail":"the error cannot be written"}`)
	}
	return data
}
