package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/registry"
)

// hub is the name by which the docker command keeps credentials for Docker Hub.
const hub = "https://index.docker.io/v1/"

// Credentials returns those that the docker command would use for an image. Even
// with an error, which says what is wrong with the user's configuration, they
// hold the address of the registry: most images need none. Errors hold no secrets.
func Credentials(ctx context.Context, image string) (registry.AuthConfig, error) {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return registry.AuthConfig{}, fmt.Errorf("%w: image: %w", fs.ErrInvalid, err)
	}
	server := reference.Domain(ref)
	if server == "docker.io" {
		server = hub
	}
	none := registry.AuthConfig{ServerAddress: server}
	dir, err := configDir()
	if err != nil {
		return none, nil //nolint:nilerr // no home, no configuration
	}
	var cfg authConfig
	if err := readJSON(filepath.Join(dir, "config.json"), &cfg); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return none, err
	}
	helper, ok := cfg.CredHelpers[server]
	if !ok {
		helper = cfg.CredsStore
	}
	var auth registry.AuthConfig
	if helper != "" {
		auth, err = askHelper(ctx, helper, server)
	} else {
		auth, err = cfg.find(server)
	}
	if err != nil {
		return none, err
	}
	auth.ServerAddress = server
	return auth, nil
}

// authConfig is what the configuration of the docker command says of registries.
type authConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"` // user:password in base64
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// find looks for credentials in the file itself. Old ones are kept by the
// registry's whole address.
func (c authConfig) find(server string) (registry.AuthConfig, error) {
	entry, ok := c.Auths[server]
	if !ok && server != hub {
		for name, e := range c.Auths {
			if hostOf(name) == server {
				entry = e
				break
			}
		}
	}
	auth := registry.AuthConfig{IdentityToken: entry.IdentityToken, RegistryToken: entry.RegistryToken}
	if entry.Auth == "" {
		return auth, nil
	}
	plain, err := base64.StdEncoding.DecodeString(entry.Auth)
	user, password, found := strings.Cut(string(plain), ":")
	if err != nil || !found {
		return auth, fmt.Errorf("%w: the credentials that the docker command keeps for %s cannot be read; log in again (docker login %[2]s)", fs.ErrInvalid, server)
	}
	auth.Username, auth.Password = user, strings.TrimRight(password, "\x00")
	return auth, nil
}

// hostOf returns the host of a registry's address.
func hostOf(address string) string {
	if _, rest, found := strings.Cut(address, "://"); found {
		address = rest
	}
	host, _, _ := strings.Cut(address, "/")
	return host
}

const (
	helperTimeout = 30 * time.Second
	// tokenUser is the user name by which helpers say that the secret is a token.
	tokenUser = "<token>"
)

// askHelper gets credentials from a program that keeps them for the docker
// command. What it writes is not told: it may be a secret.
func askHelper(ctx context.Context, helper, server string) (registry.AuthConfig, error) {
	var auth registry.AuthConfig
	program := "docker-credential-" + helper
	if filepath.Base(program) != program {
		return auth, fmt.Errorf("%w: %q cannot be the name of a credential helper; correct credsStore or credHelpers in the docker command's configuration", fs.ErrInvalid, helper)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return auth, fmt.Errorf("%s has none for %s: %w", program, server, err)
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return auth, fmt.Errorf("%w: %s does not answer with credentials", fs.ErrInvalid, program)
	}
	if answer.Username == tokenUser {
		auth.IdentityToken = answer.Secret
	} else {
		auth.Username, auth.Password = answer.Username, answer.Secret
	}
	return auth, nil
}

// registryTimeout is how long a registry may take to say what it thinks of
// Credentials.
const registryTimeout = 10 * time.Second

// RegistryRefuses reports whether a registry of which this machine can ask it
// refuses the credentials. They are sent without TLS to this machine only.
func RegistryRefuses(ctx context.Context, auth registry.AuthConfig) bool {
	if auth.ServerAddress == hub {
		return false // it gives tokens to everybody
	}
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	asker := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	schemes := []string{"https"}
	if host, _, err := net.SplitHostPort(auth.ServerAddress); err == nil && net.ParseIP(host).IsLoopback() {
		schemes = append(schemes, "http")
	}
	for _, scheme := range schemes {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+auth.ServerAddress+"/v2/", nil)
		if err != nil {
			return false
		}
		if auth.Username != "" {
			req.SetBasicAuth(auth.Username, auth.Password)
		}
		answer, err := asker.Do(req)
		if err != nil {
			continue
		}
		_ = answer.Body.Close()
		scheme, _, _ := strings.Cut(answer.Header.Get("WWW-Authenticate"), " ")
		return answer.StatusCode == http.StatusUnauthorized && strings.EqualFold(scheme, "Basic")
	}
	return false
}
