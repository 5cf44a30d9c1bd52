// Package engine connects to Docker engines: it finds the engine that the docker command
// would use, dials it by a Unix socket, TCP, TLS or ssh, shares clients between sandboxes,
// reads the credentials of registries, and turns errors of the engine into those of the
// contract. It knows nothing about sandboxes.
package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	dockercontext "github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/docker/docker/client"
)

// readBuffer is large, so that archives and output come in few pieces.
const readBuffer = 64 << 10

// Connect returns a client of the engine at host; "" means the engine that the docker command would
// use. It does not contact the engine. The caller closes the client, or passes it to [Share]. A
// host or a configuration that cannot be parsed is fs.ErrInvalid.
func Connect(host string) (*client.Client, error) {
	at, err := findEngine(host)
	if err != nil {
		return nil, err
	}
	if v := os.Getenv(client.EnvOverrideAPIVersion); v != "" && !isAPIVersion(v) {
		return nil, fmt.Errorf("%w: %s: %q is no version of the API; unset it, or set it to one such as 1.41", fs.ErrInvalid, client.EnvOverrideAPIVersion, v)
	}
	// Sandboxes rarely talk to the engine; idle connections would cost every one of them files and
	// goroutines.
	transport := &http.Transport{DisableKeepAlives: true, ReadBufferSize: readBuffer}
	opts := []client.Opt{
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(at.address),
		client.WithVersionFromEnv(),
		client.WithAPIVersionNegotiation(),
	}
	if at.dial != nil {
		opts = append(opts, client.WithDialContext(guarded(at.dial, answerTimeout)))
	}
	eng, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: address of the Docker engine: %w", fs.ErrInvalid, err)
	}
	transport.Proxy = nil // the guests' streams cannot go through a proxy
	if strings.HasPrefix(at.address, "ssh://") {
		transport.DisableKeepAlives = false // each connection is a login
		transport.MaxIdleConns = 1
		transport.IdleConnTimeout = sshIdle
	}
	return eng, nil
}

// isAPIVersion reports whether the engine's client can make addresses of v that an engine
// understands.
func isAPIVersion(v string) bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
	isNumber := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return isNumber(major) && isNumber(minor)
}

// engineAddress is the address of an engine and how to connect to it.
type engineAddress struct {
	address string // as the engine's client understands it
	dial    dialer // nil means the client's own
}

// findEngine looks for the engine in the same order as the docker command.
func findEngine(host string) (engineAddress, error) {
	if host == "" {
		host = os.Getenv(client.EnvOverrideHost)
	}
	if host != "" {
		return addressFromEnv(host)
	}
	dir, err := configDir()
	if err != nil {
		return addressFromEnv(client.DefaultDockerHost) // no home, no configuration
	}
	name := os.Getenv("DOCKER_CONTEXT")
	if name == "" {
		var cfg struct {
			CurrentContext string `json:"currentContext"`
		}
		if err := readJSON(filepath.Join(dir, "config.json"), &cfg); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return engineAddress{}, err
		}
		name = cfg.CurrentContext
	}
	if name == "" || name == "default" {
		return addressFromEnv(client.DefaultDockerHost)
	}
	at, err := addressFromContext(dir, name)
	if err != nil {
		return at, fmt.Errorf("docker context %q: %w", name, err)
	}
	return at, nil
}

// FoundBy returns what names the engine that [Connect] chooses for a host: "host", a variable, a
// context or the default address.
func FoundBy(host string) string {
	if host != "" {
		return "host"
	}
	for _, variable := range []string{client.EnvOverrideHost, "DOCKER_CONTEXT"} {
		if os.Getenv(variable) != "" {
			return variable
		}
	}
	if name := currentContext(); name != "" && name != "default" {
		return fmt.Sprintf("docker context %q", name)
	}
	return "the default address"
}

// currentContext returns the context that 'docker context use' has set, or "".
func currentContext() string {
	var cfg struct {
		CurrentContext string `json:"currentContext"`
	}
	dir, err := configDir()
	if err == nil {
		err = readJSON(filepath.Join(dir, "config.json"), &cfg)
	}
	if err != nil {
		return "" // Connect reports what is wrong
	}
	return cfg.CurrentContext
}

// Present reports whether host, the environment, a context of the docker command, or the default
// socket indicates an engine. It does not contact the engine.
func Present(host string) bool {
	if host != "" {
		return true
	}
	eng, err := Connect("")
	if err != nil {
		return true // something is configured, and wrong
	}
	defer func() { _ = eng.Close() }() // it was not used
	socket, isDefault := strings.CutPrefix(client.DefaultDockerHost, "unix://")
	if !isDefault || eng.DaemonHost() != client.DefaultDockerHost {
		return true
	}
	_, err = os.Stat(socket)
	return err == nil
}

func configDir() (string, error) {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".docker"), nil
}

// addressFromEnv returns the address of host, with the certificates that the environment names.
func addressFromEnv(host string) (engineAddress, error) {
	verify := os.Getenv(client.EnvTLSVerify) != ""
	if !verify && os.Getenv("DOCKER_TLS") == "" {
		return resolve(host, nil)
	}
	dir := os.Getenv(client.EnvOverrideCertPath)
	if dir == "" {
		var err error
		if dir, err = configDir(); err != nil {
			return engineAddress{}, fmt.Errorf("set DOCKER_CERT_PATH to the folder of the certificates: %w", err)
		}
	}
	return resolve(host, &certificates{dir: dir, insecure: !verify})
}

// addressFromContext returns the address in a context of the docker command.
func addressFromContext(dir, name string) (engineAddress, error) {
	contexts := store.New(filepath.Join(dir, "contexts"), store.NewConfig(
		func() any { return &map[string]any{} },
		store.EndpointTypeGetter(dockercontext.DockerEndpoint, func() any { return &dockercontext.EndpointMeta{} }),
	))
	found, err := contexts.GetMetadata(name)
	if cerrdefs.IsNotFound(err) {
		return engineAddress{}, fmt.Errorf("%w; choose another one (docker context ls)", fs.ErrNotExist)
	}
	if err != nil {
		return engineAddress{}, fmt.Errorf("%w: %w; correct or remove it (docker context rm)", fs.ErrInvalid, err)
	}
	endpoint, err := dockercontext.EndpointFromContext(found)
	if err != nil {
		return engineAddress{}, fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	certs := &certificates{
		dir:      filepath.Join(contexts.GetStorageInfo(name).TLSPath, dockercontext.DockerEndpoint),
		insecure: endpoint.SkipTLSVerify,
	}
	if _, err := os.Stat(certs.dir); err != nil && !endpoint.SkipTLSVerify {
		certs = nil
	}
	return resolve(endpoint.Host, certs)
}

// resolve parses an address. certs are used for TCP only.
func resolve(host string, certs *certificates) (engineAddress, error) {
	u, err := parseHost(host)
	if err != nil {
		return engineAddress{}, err
	}
	switch u.Scheme {
	case "unix":
		return engineAddress{address: host, dial: dialUnix(u.Path)}, nil
	case "npipe":
		return engineAddress{address: host}, nil
	case "ssh":
		dial, err := dialSSH(u)
		// Omit the user: the address becomes the Host of the requests.
		return engineAddress{address: "ssh://" + u.Host, dial: dial}, err
	case "http":
		certs = nil
	case "https":
		if certs == nil {
			certs = &certificates{}
		}
	}
	if u.Port() == "" {
		port := "2375"
		if certs != nil {
			port = "2376"
		}
		u.Host += ":" + port
	}
	dial := dialTCP(u.Host)
	if certs != nil {
		config, err := certs.config(u.Hostname())
		if err != nil {
			return engineAddress{}, err
		}
		dial = dialTLS(dial, config)
	}
	// The dialer does the TLS handshake, so that the context cancels it, also for streams.
	return engineAddress{address: "tcp://" + u.Host + u.Path, dial: dial}, nil
}

// parseHost splits an address of an engine. Like the docker command it also accepts host:port.
func parseHost(host string) (*url.URL, error) {
	scheme, rest, found := strings.Cut(host, "://")
	if !found && strings.Contains(host, ":") {
		scheme, rest = "tcp", host
	}
	bad := fmt.Errorf("%w: %q is no address of a Docker engine; write it as unix:///path, tcp://host:port or ssh://user@host", fs.ErrInvalid, withoutPassword(host))
	switch scheme {
	case "unix", "npipe":
		if rest == "" {
			return nil, bad
		}
		return &url.URL{Scheme: scheme, Path: rest}, nil
	case "tcp", "http", "https", "ssh":
		u, err := url.Parse(scheme + "://" + rest)
		if err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, bad
		}
		if _, secret := u.User.Password(); secret || u.User != nil && scheme != "ssh" {
			return nil, fmt.Errorf("%w: the address of the Docker engine must not hold a password, nor a user but with ssh", fs.ErrInvalid)
		}
		return u, nil
	}
	return nil, bad
}

// withoutPassword hides the part before the @ of an address that cannot be parsed.
func withoutPassword(host string) string {
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		return "..." + host[at:]
	}
	return host
}

func readJSON(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %s: %w; correct the file", fs.ErrInvalid, file, err)
	}
	return nil
}
