package secrets

import (
	"fmt"
	"io"
	"log"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
)

// logger redacts secrets in log records.
type logger struct {
	hclog.Logger
	hide redact.Redactor
}

func (l logger) safe(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		text := fmt.Sprint(arg)
		if safe[i] = arg; l.hide.Text(text) != text {
			safe[i] = l.hide.Text(text)
		}
	}
	return safe
}

func (l logger) Log(level hclog.Level, msg string, args ...any) {
	if level >= l.GetLevel() {
		l.Logger.Log(level, l.hide.Text(msg), l.safe(args)...)
	}
}

func (l logger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l logger) With(args ...any) hclog.Logger {
	return logger{l.Logger.With(l.safe(args)...), l.hide}
}

func (l logger) Named(name string) hclog.Logger {
	return logger{l.Logger.Named(name), l.hide}
}

func (l logger) ResetNamed(name string) hclog.Logger {
	return logger{l.Logger.ResetNamed(name), l.hide}
}

// StandardLogger returns a logger for libraries that log with package log. opts may be nil.
func (l logger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	if opts == nil {
		opts = &hclog.StandardLoggerOptions{}
	}
	return log.New(l.StandardWriter(opts), "", 0)
}

// StandardWriter returns a writer that takes one record with each Write.
func (l logger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return writer{l.Logger.StandardWriter(opts), l.hide}
}

// writer redacts secrets in what is written.
type writer struct {
	to   io.Writer
	hide redact.Redactor
}

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.hide.Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// NewLogger returns a logger that writes to another one and redacts secrets. If to is such a logger itself, NewLogger
// replaces its secrets.
func NewLogger(to hclog.Logger, hide redact.Redactor) hclog.Logger {
	if quiet, ok := to.(logger); ok {
		to = quiet.Logger
	}
	return logger{to, hide}
}
