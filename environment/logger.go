package environment

import (
	"fmt"
	"io"
	"log"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
)

// quietLogger blots secrets out of what is logged.
type quietLogger struct {
	hclog.Logger
	hide redactor
}

// SafeLogger returns a logger that writes to c.Logger and replaces the secrets of c, as
// events do. Without a Logger it writes nothing; it is never nil.
func (c Config) SafeLogger() hclog.Logger {
	if c = c.withQuietLogger(); c.Logger != nil {
		return c.Logger
	}
	return hclog.NewNullLogger()
}

// logOf returns the logger of what is done with a sandbox.
func (c Config) logOf(sandbox string) hclog.Logger {
	log := c.SafeLogger().With(eventlog.Sandbox, sandbox)
	for key, value := range map[string]string{eventlog.Type: c.Sandbox.Type, eventlog.Agent: c.Agent.Name} {
		if value != "" {
			log = log.With(key, value)
		}
	}
	return log
}

// withQuietLogger returns the configuration with a Logger that does not see its
// secrets.
func (c Config) withQuietLogger() Config {
	if c.Logger == nil {
		return c
	}
	if quiet, ok := c.Logger.(quietLogger); ok {
		c.Logger = quiet.Logger // more secrets may be known by now
	}
	c.Logger = quietLogger{c.Logger, newRedactor(secretsOfConfig(c))}
	return c
}

func (l quietLogger) safe(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		text := fmt.Sprint(arg)
		if safe[i] = arg; l.hide.redact(text) != text {
			safe[i] = l.hide.redact(text)
		}
	}
	return safe
}

func (l quietLogger) Log(level hclog.Level, msg string, args ...any) {
	if level >= l.GetLevel() {
		l.Logger.Log(level, l.hide.redact(msg), l.safe(args)...)
	}
}

func (l quietLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l quietLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l quietLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l quietLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l quietLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l quietLogger) With(args ...any) hclog.Logger {
	return quietLogger{l.Logger.With(l.safe(args)...), l.hide}
}

func (l quietLogger) Named(name string) hclog.Logger {
	return quietLogger{l.Logger.Named(name), l.hide}
}

func (l quietLogger) ResetNamed(name string) hclog.Logger {
	return quietLogger{l.Logger.ResetNamed(name), l.hide}
}

// StandardLogger is for libraries that log with package log.
func (l quietLogger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(opts), "", 0)
}

// StandardWriter takes one record with each Write.
func (l quietLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return quietWriter{l.Logger.StandardWriter(opts), l.hide}
}

// quietWriter blots secrets out of what is written.
type quietWriter struct {
	to   io.Writer
	hide redactor
}

func (w quietWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.hide.redact(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
