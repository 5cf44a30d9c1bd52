// Package secrets decides which configured values are secrets, and keeps them out of logs. Package redact redacts them.
package secrets

import (
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/internal/secret"
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

// Found collects the secrets among values. The zero value has none.
type Found struct{ values []string }

// Values returns the secrets, sorted, each once.
func (s *Found) Values() []string {
	slices.Sort(s.values)
	return slices.Compact(s.values)
}

// AddAll adds the secrets among variables, headers or settings.
func (s *Found) AddAll(values map[string]string) {
	for name, value := range values {
		s.Add(name, value)
	}
}

// AddTree adds the secrets of a JSON value, each under its key.
func (s *Found) AddTree(name string, value any) {
	switch value := value.(type) {
	case string:
		s.Add(name, value)
	case []any:
		for _, v := range value {
			s.AddTree(name, v)
		}
	case map[string]any:
		for key, v := range value {
			s.AddTree(key, v)
		}
	}
}

// variables are the names of mappings of variables or headers: each value in one may be a secret.
var variables = []string{"env", "environment", "headers"}

// Hidden returns a copy of a JSON value without the values of variables, headers and settings with the name of a secret. It adds the
// secrets in other texts, such as the lines of a file and the arguments of a command, for a redactor.
func (s *Found) Hidden(name string, value any) any {
	switch value := value.(type) {
	case string:
		if isReference(value) {
			return value
		}
		if isSecretName(name) {
			return redact.Redacted
		}
		s.addText(value)
	case []any:
		hidden, words := make([]any, len(value)), make([]string, 0, len(value))
		for i, v := range value {
			hidden[i] = s.Hidden(name, v)
			if word, ok := v.(string); ok {
				words = append(words, word)
			}
		}
		s.addText(strings.Join(words, " ")) // they may be the arguments of a command
		return hidden
	case map[string]any:
		hidden := make(map[string]any, len(value))
		for key, v := range value {
			text, is := v.(string)
			if is && slices.Contains(variables, name) && !isReference(text) {
				s.Add(key, text) // it may stand elsewhere, too
				hidden[key] = redact.Redacted
			} else {
				hidden[key] = s.Hidden(key, v)
			}
		}
		return hidden
	}
	return value
}

// addText adds the secrets in a text, such as "API_KEY=...", "--token ..." and "Authorization: Bearer ...".
func (s *Found) addText(text string) {
	s.Add("", text)
	words, name := strings.Fields(text), ""
	for _, word := range words {
		word = strings.Trim(word, `"'`+"`,;")
		if strings.HasSuffix(word, ":") || strings.HasPrefix(word, "--") && !strings.Contains(word, "=") {
			name = word
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		s.Add(key, strings.Trim(value, `"'`))
		if s.Add(name, word); !strings.EqualFold(word, "Bearer") && !strings.EqualFold(word, "Basic") {
			name = ""
		}
	}
}

// isReference reports whether a value refers to a variable.
func isReference(value string) bool {
	value = strings.TrimSpace(value)
	return strings.HasPrefix(value, "${") || strings.HasPrefix(value, "{env:")
}

// Add adds the secrets in a value with this name.
func (s *Found) Add(name, value string) {
	value = strings.TrimSpace(value)
	switch {
	case isReference(value):
		return
	case isSecretName(name), isToken(value):
		s.Hide(value)
		if _, rest, ok := strings.Cut(value, " "); ok { // "Bearer TOKEN"
			s.Hide(strings.TrimSpace(rest))
		}
	}
	s.addURL(value)
}

// addURL adds the credentials of a URL, and those of its query.
func (s *Found) addURL(raw string) {
	if !strings.Contains(raw, "://") {
		return
	}
	for _, value := range hostgit.SecretsOf(raw) {
		if strings.Contains(value, ":") || !strings.Contains(raw, "://"+value+"@") || strings.HasPrefix(raw, "http") {
			s.Hide(value) // a user alone is no secret, but in HTTP it may be a token
		}
	}
	if u, err := url.Parse(raw); err == nil {
		for name, values := range u.Query() {
			for _, value := range values {
				if isSecretName(name) {
					s.Hide(value)
				}
			}
		}
	}
}

// Hide adds a value, and its form in a URL.
func (s *Found) Hide(value string) {
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
