package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Provider creates sandboxes on one server. Only Server is required.
type Provider struct {
	// Server is the address of the server, such as "https://build1:8377".
	Server string `json:"server,omitempty"`
	// Sandbox is the type of the sandboxes on the server, such as "docker". Empty means that of the server's configuration for
	// a new one, and any for others.
	Sandbox string `json:"sandbox,omitempty"`

	// Token is what the server asks for. Empty means the value of AGENTENV_TOKEN, or what a server of this user on this machine
	// has left for its address.
	Token string `json:"-"`
	// Client makes the requests, by HTTP/1.1. Nil means one with the proxies of the environment and no timeout of its own.
	Client *http.Client `json:"-"`
	// Logger logs the events of the connections. Nil disables logging.
	Logger hclog.Logger `json:"-"`
}

// CheckSpec implements primitives.SpecChecker.
func (p Provider) CheckSpec(spec primitives.Spec) error { return errors.Join(p.check(), spec.Check()) }

// check returns an error for an address that cannot be one.
func (p Provider) check() error {
	u, err := url.Parse(p.Server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return &primitives.SettingError{
			Setting: "server", Problem: fmt.Sprintf("%q is no address of a server; give one such as https://build1:8377, as 'envctl serve' prints it", p.where()), Err: fs.ErrInvalid,
		}
	}
	return nil
}

// where returns the address without a password, which it should not have.
func (p Provider) where() string {
	u, err := url.Parse(p.Server)
	if err != nil && strings.Contains(p.Server, "@") {
		return "the server" // the text may hold a password
	}
	if err != nil {
		return p.Server
	}
	return u.Redacted()
}

// sandbox returns the key "sandbox" of a configuration, with spec.
func (p Provider) sandbox(spec primitives.Spec) (json.RawMessage, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var settings map[string]any
	if err := json.Unmarshal(data, &settings); err != nil {
		return nil, err
	}
	settings["type"] = p.Sandbox
	for name, span := range map[string]time.Duration{"grace": spec.Grace, "expires": spec.Expires} {
		if span != 0 {
			settings[name] = span.String() // as files have it
		}
	}
	return json.Marshal(settings)
}
