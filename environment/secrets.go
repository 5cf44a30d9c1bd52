package environment

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/environment/internal/secrets"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
)

// secretsOfConfig returns the secrets among the configured values: values with the name of a
// secret, tokens of well-known vendors, and the credentials in URLs. Other values are settings,
// such as the address of an API or the name of a model.
func secretsOfConfig(cfg Config) []string {
	var s secrets.Found
	s.AddAll(cfg.Agent.Env)
	for _, server := range cfg.Profile.MCPServers {
		s.AddAll(server.Env)
		s.AddAll(server.Headers)
		s.Add("", server.URL)
		for _, arg := range server.Command {
			name, value, _ := strings.Cut(arg, "=")
			s.Add(name, value)
			s.Add("", arg)
		}
	}
	s.AddAll(cfg.Sandbox.Env)
	for _, source := range cfg.Workspace {
		if source.Git != nil {
			s.Add("", source.Git.URL)
		}
	}
	var settings any
	if json.Unmarshal(cfg.Agent.Config, &settings) == nil {
		s.AddTree("", settings)
	}
	return s.Values()
}

// FormatSafely returns what [FormatConfig] does for people to see: "[redacted]" stands in place of all variables and headers, of values
// with the name of a secret, tokens of well-known vendors and the credentials in URLs, wherever they are, and in inline files
// lines such as NAME=VALUE and NAME: VALUE. Other forms in a text are not known: inline files are no place for secrets. A value that refers to a variable, as ${NAME}, stays. [ParseConfig] may not read the result.
func FormatSafely(cfg Config) ([]byte, error) {
	settings, err := configfile.Settings(cfg)
	if err != nil {
		return nil, fmt.Errorf("format the configuration: %w", err)
	}
	var found secrets.Found
	data, err := json.Marshal(found.Hidden("", settings))
	if err != nil {
		return nil, fmt.Errorf("format the configuration: %w", err)
	}
	return redact.New(append(found.Values(), secretsOfConfig(cfg)...)).JSON(data), nil
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
	if c.Logger != nil {
		c.Logger = secrets.NewLogger(c.Logger, redact.New(secretsOfConfig(c))) // it may have more secrets than before
	}
	return c
}
