package environment

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// redactor blots out secrets. The zero value knows none.
type redactor struct {
	replacer *strings.Replacer
	longest  int // of the secrets, in bytes
}

func newRedactor(secrets []string) redactor {
	secrets = slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return s == "" })
	// The longest first: one may be the beginning of another.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	r := redactor{}
	pairs := make([]string, 0, 2*len(secrets))
	for _, secret := range secrets {
		pairs = append(pairs, secret, "[redacted]")
		r.longest = max(r.longest, len(secret))
	}
	r.replacer = strings.NewReplacer(pairs...)
	return r
}

func (r redactor) redact(s string) string {
	if r.replacer == nil {
		return s
	}
	return r.replacer.Replace(s)
}

// hidden is an event without secrets in its message, if it is one that tells how the
// agent's program fares. What an agent says and does is told as it is.
func (e *Environment) hidden(ev runnerscripts.Event) runnerscripts.Event {
	switch ev.Type {
	case runnerscripts.TypeQueryFailed, runnerscripts.TypeError, runnerscripts.TypeLog:
	default:
		return ev
	}
	var payload map[string]json.RawMessage
	var message string
	if json.Unmarshal(ev.Payload, &payload) != nil || json.Unmarshal(payload["message"], &message) != nil {
		return ev
	}
	safe := e.hide.redact(message)
	if safe == message {
		return ev
	}
	said, err := json.Marshal(safe)
	if err == nil {
		payload["message"] = said
		said, err = json.Marshal(payload)
	}
	if err != nil {
		said = []byte("{}") // texts and what has just been read do not fail
	}
	ev.Payload = said
	return ev
}

// secretsOfConfig lists the configured values that may be secrets: everything of
// some length.
func secretsOfConfig(cfg Config) []string {
	const shortest = 6
	var secrets []string
	add := func(value string) {
		if len(value) >= shortest {
			secrets = append(secrets, value)
		}
	}
	for _, value := range cfg.Env {
		add(value)
	}
	for _, value := range cfg.Agent.Env {
		add(value)
	}
	for _, server := range cfg.Profile.MCPServers {
		for _, value := range server.Env {
			add(value)
		}
		for _, value := range server.Headers {
			add(value)
		}
	}
	for _, entry := range cfg.Sandbox.Local.Env {
		_, value, _ := strings.Cut(entry, "=")
		add(value)
	}
	return secrets
}

// maxTail is how much of a script's standard error is kept: 16 KiB.
const maxTail = 16 << 10

// tail keeps the end of what is written to it.
type tail struct {
	hide redactor
	mu   sync.Mutex
	buf  []byte // up to twice as much, so that few secrets are cut
	cut  bool   // something came before buf
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-2*maxTail):]...)
	t.cut = t.cut || len(b) > 2*maxTail
	if over := len(t.buf) - 2*maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(b), nil
}

// String returns the end, as UTF-8 and without secrets.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.hide.redact(string(t.buf))
	if t.cut {
		// The rest of a secret whose beginning is gone.
		s = s[min(len(s), t.hide.longest):]
	}
	return strings.ToValidUTF8(s[max(0, len(s)-maxTail):], "\uFFFD")
}
