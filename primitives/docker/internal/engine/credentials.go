package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/credentials"
	"github.com/docker/docker/api/types/registry"
)

// hub is the name under which the docker command stores credentials for Docker Hub.
const hub = "https://index.docker.io/v1/"

// Credentials returns the credentials that the docker command would use for an image. With an
// error, which says what is wrong with the user's configuration, they still hold the address of the
// registry: most images need no more. Errors hold no secrets.
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
	if auth, ok := fromVariable(server); ok {
		return auth, nil
	}
	dir, err := configDir()
	if err != nil {
		return none, nil // no home, no configuration
	}
	cfg, err := config.Load(dir)
	if err != nil {
		return none, fmt.Errorf("%w: %w; correct the file, or log in again (docker login %s)", fs.ErrInvalid, err, server)
	}
	helper, ok := cfg.CredentialHelpers[server]
	if !ok {
		helper = cfg.CredentialsStore
	}
	var auth registry.AuthConfig
	if helper != "" {
		auth, err = askHelper(ctx, helper, server)
	} else {
		auth, err = fromFile(cfg, server)
	}
	if err != nil {
		return none, err
	}
	auth.ServerAddress = server
	return auth, nil
}

// fromVariable returns the credentials in the variable DOCKER_AUTH_CONFIG, which take precedence
// over the configuration. Like the docker command it ignores a variable that cannot be parsed.
func fromVariable(server string) (registry.AuthConfig, bool) {
	cfg, err := config.LoadFromReader(strings.NewReader(os.Getenv(configfile.DockerEnvConfigKey)))
	if err != nil {
		return registry.AuthConfig{}, false
	}
	auth, err := fromFile(cfg, server)
	auth.ServerAddress = server
	return auth, err == nil && auth.Username+auth.IdentityToken+auth.RegistryToken != ""
}

// fromFile returns the credentials in the docker command's configuration.
func fromFile(cfg *configfile.ConfigFile, server string) (registry.AuthConfig, error) {
	found, err := credentials.NewFileStore(cfg).Get(server)
	return registry.AuthConfig{
		Username: found.Username, Password: found.Password,
		IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
	}, err
}

const (
	helperTimeout = 30 * time.Second
	// tokenUser is the user name with which helpers mark a secret as a token.
	tokenUser = "<token>"
)

// askHelper gets credentials from a credential helper of the docker command. It does not use
// docker/cli, which takes no context here, and puts the helper's output, which may be a secret,
// into errors.
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

// registryTimeout is how long a registry may take to answer RegistryRefuses.
const registryTimeout = 10 * time.Second

// RegistryRefuses reports whether a registry that this machine can reach
// refuses the credentials. It sends them without TLS to this machine only.
func RegistryRefuses(ctx context.Context, auth registry.AuthConfig) bool {
	if auth.ServerAddress == hub {
		return false // it gives everyone a token
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
