package environment

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/secret"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A name of a variable, header or setting is that of a secret if one of its words is in
// secretWords or contains one of secretParts, unless its last word is in settingWords:
// OPENAI_API_KEY and X-Auth-Token are secrets, OPENAI_BASE_URL and TOKEN_FILE are not.
var (
	secretWords  = []string{"KEY", "KEYS", "PASS", "PWD", "AUTH", "BEARER", "JWT", "PAT", "DSN", "SIG", "SIGNATURE"}
	secretParts  = []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "AUTHORIZATION", "COOKIE"}
	settingWords = []string{
		"URL", "URI", "HOST", "PORT", "ENDPOINT", "ADDR", "ADDRESS", "PROXY", "SOCK", "REGION", "MODEL", "FILE", "PATH", "DIR",
		"ID", "NAME", "USER", "TYPE", "MODE", "METHOD", "HELPER", "VERSION", "TIMEOUT", "TTL", "LIMIT", "COUNT", "SIZE",
	}
)

// tokenPrefixes are the prefixes of the tokens of well-known vendors, which are secrets under
// any name.
var tokenPrefixes = []string{
	"sk-", "sk_", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "xoxs-",
	"AIza", "ya29.", "hf_", "npm_", "pypi-", "eyJ", "-----BEGIN ",
}

// shortestToken is the least length of a vendor's token.
const shortestToken = 20

// secrets collects values to redact.
type secrets struct{ values []string }

// secretsOfConfig returns the secrets among the configured values: values with the name of a
// secret, tokens of well-known vendors, and the credentials in URLs. Other values are settings,
// such as the address of an API or the name of a model.
func secretsOfConfig(cfg Config) []string {
	var s secrets
	s.addAll(cfg.Agent.Env)
	for _, server := range cfg.Profile.MCPServers {
		s.addAll(server.Env)
		s.addAll(server.Headers)
		s.add("", server.URL)
		for _, arg := range server.Command {
			name, value, _ := strings.Cut(arg, "=")
			s.add(name, value)
			s.add("", arg)
		}
	}
	s.addAll(cfg.Sandbox.Env)
	for _, source := range cfg.Workspace {
		if source.Git != nil {
			s.add("", source.Git.URL)
		}
	}
	var settings any
	if json.Unmarshal(cfg.Agent.Config, &settings) == nil {
		s.addTree("", settings)
	}
	slices.Sort(s.values)
	return slices.Compact(s.values)
}

func (s *secrets) addAll(values map[string]string) {
	for name, value := range values {
		s.add(name, value)
	}
}

// addTree adds the secrets of a JSON value, each under its key.
func (s *secrets) addTree(name string, value any) {
	switch value := value.(type) {
	case string:
		s.add(name, value)
	case []any:
		for _, v := range value {
			s.addTree(name, v)
		}
	case map[string]any:
		for key, v := range value {
			s.addTree(key, v)
		}
	}
}

// add adds the secrets in a value with this name.
func (s *secrets) add(name, value string) {
	value = strings.TrimSpace(value)
	switch {
	case strings.HasPrefix(value, "${"), strings.HasPrefix(value, "{env:"):
		return // a reference to a variable
	case isSecretName(name), isToken(value):
		s.hide(value)
		if _, rest, ok := strings.Cut(value, " "); ok { // "Bearer TOKEN"
			s.hide(strings.TrimSpace(rest))
		}
	}
	s.addURL(value)
}

// addURL adds the credentials of a URL, and those of its query.
func (s *secrets) addURL(raw string) {
	if !strings.Contains(raw, "://") {
		return
	}
	for _, value := range hostgit.SecretsOf(raw) {
		if strings.Contains(value, ":") || !strings.Contains(raw, "://"+value+"@") || strings.HasPrefix(raw, "http") {
			s.hide(value) // a user alone is no secret, but in HTTP it may be a token
		}
	}
	if u, err := url.Parse(raw); err == nil {
		for name, values := range u.Query() {
			for _, value := range values {
				if isSecretName(name) {
					s.hide(value)
				}
			}
		}
	}
}

// hide adds a value, and its form in a URL.
func (s *secrets) hide(value string) {
	if len(value) < secret.Shortest {
		return
	}
	s.values = append(s.values, value)
	if escaped := url.QueryEscape(value); escaped != value {
		s.values = append(s.values, escaped)
	}
}

func isToken(value string) bool {
	return len(value) >= shortestToken && (strings.HasPrefix(value, "-----") || !strings.ContainsAny(value, " \t\r\n")) &&
		slices.ContainsFunc(tokenPrefixes, func(p string) bool { return strings.HasPrefix(value, p) })
}

func isSecretName(name string) bool {
	words := wordsOf(name)
	if len(words) == 0 || len(words) == 1 && words[0] == "PWD" || slices.Contains(settingWords, words[len(words)-1]) {
		return false
	}
	return slices.ContainsFunc(words, func(word string) bool {
		return slices.Contains(secretWords, word) || strings.HasSuffix(word, "KEY") ||
			slices.ContainsFunc(secretParts, func(part string) bool { return strings.Contains(word, part) })
	})
}

// wordsOf splits a name at characters that are neither letters nor digits, and before capitals.
// It returns the words in capitals.
func wordsOf(name string) []string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		lower = unicode.IsLower(r)
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			r = ' '
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return strings.Fields(b.String())
}

// redactingLogger redacts secrets in log records.
type redactingLogger struct {
	hclog.Logger
	hide redact.Redactor
}

// SafeLogger returns a logger that writes to c.Logger and redacts the secrets of c, as events
// do. Without a Logger it writes nothing; it is never nil.
func (c Config) SafeLogger() hclog.Logger {
	if c = c.withRedactingLogger(); c.Logger != nil {
		return c.Logger
	}
	return hclog.NewNullLogger()
}

// logOf returns the logger for a sandbox.
func (c Config) logOf(sandbox string) hclog.Logger {
	log := c.SafeLogger().With(eventlog.Sandbox, sandbox)
	for key, value := range map[string]string{eventlog.Type: c.Sandbox.Type, eventlog.Agent: c.Agent.Name} {
		if value != "" {
			log = log.With(key, value)
		}
	}
	return log
}

// withRedactingLogger returns the configuration with a Logger that redacts its secrets.
func (c Config) withRedactingLogger() Config {
	if c.Logger == nil {
		return c
	}
	if quiet, ok := c.Logger.(redactingLogger); ok {
		c.Logger = quiet.Logger // the configuration may have more secrets now
	}
	c.Logger = redactingLogger{c.Logger, redact.New(secretsOfConfig(c))}
	return c
}

func (l redactingLogger) safe(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		text := fmt.Sprint(arg)
		if safe[i] = arg; l.hide.Text(text) != text {
			safe[i] = l.hide.Text(text)
		}
	}
	return safe
}

func (l redactingLogger) Log(level hclog.Level, msg string, args ...any) {
	if level >= l.GetLevel() {
		l.Logger.Log(level, l.hide.Text(msg), l.safe(args)...)
	}
}

func (l redactingLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l redactingLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l redactingLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l redactingLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l redactingLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l redactingLogger) With(args ...any) hclog.Logger {
	return redactingLogger{l.Logger.With(l.safe(args)...), l.hide}
}

func (l redactingLogger) Named(name string) hclog.Logger {
	return redactingLogger{l.Logger.Named(name), l.hide}
}

func (l redactingLogger) ResetNamed(name string) hclog.Logger {
	return redactingLogger{l.Logger.ResetNamed(name), l.hide}
}

// StandardLogger returns a logger for libraries that log with package log. opts may be nil.
func (l redactingLogger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	if opts == nil {
		opts = &hclog.StandardLoggerOptions{}
	}
	return log.New(l.StandardWriter(opts), "", 0)
}

// StandardWriter returns a writer that takes one record with each Write.
func (l redactingLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return redactingWriter{l.Logger.StandardWriter(opts), l.hide}
}

// redactingWriter redacts secrets in what is written.
type redactingWriter struct {
	to   io.Writer
	hide redact.Redactor
}

func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.hide.Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// redactEvent returns the event with the secrets in its strings redacted.
func (e *Environment) redactEvent(ev runnerscripts.Event) runnerscripts.Event {
	if e.hide.Empty() {
		return ev
	}
	ev.Payload = e.hide.JSON(ev.Payload)
	if ev.ConversationID != runnerscripts.MainConversation {
		ev.ConversationID = e.hide.Text(ev.ConversationID)
	}
	if runnerscripts.PayloadType(ev.Type) == nil {
		ev.Type = runnerscripts.EventType(e.hide.Text(string(ev.Type)))
	}
	return ev
}
