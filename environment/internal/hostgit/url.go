package hostgit

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
)

// checkCredentials returns an error for a URL if it is ambiguous where its password ends. The
// error does not repeat the URL: any part of it may belong to the password.
func (g Repository) checkCredentials() error {
	address := g.URL
	if _, rest, _ := strings.Cut(g.URL, "://"); !strings.ContainsAny(rest, "/?#") {
		// A URL without a path may have been cut at the # of its password, if it was given as
		// URL#REF.
		address += "#" + g.Ref
	}
	if isClear(address) {
		return nil
	}
	return errors.New("git: url: its user, password, host and port cannot be told apart; percent-encode the password (# is %23, / is %2F, % is %25, @ is %40), and an @ of the path, too")
}

// isClear reports whether it is certain which credentials a URL has, or that it has none.
// url.Parse alone is not enough: with a password that is not percent-encoded it fails, or takes
// the rest of the password for a path.
func isClear(raw string) bool {
	scheme, rest, isURL := strings.Cut(raw, "://")
	if !isURL || scheme == "file" && strings.HasPrefix(rest, "/") {
		return true // a path, or host:path for ssh, which take no password
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		_, err := url.Parse(scheme + "://" + rest[:end])
		return err == nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		return false
	}
	if at < end {
		return u.User != nil
	}
	// An @ in what looks like the path may be the end of a password.
	if _, given := u.User.Password(); given || u.Host == "" || rest[end] != '/' {
		return false
	}
	host := u.Hostname()
	if u.Host == host || u.Host == "["+host+"]" {
		return true
	}
	// host:8080/x@v1 and user:8080/x@host look the same, except for the name.
	return u.Port() != "" && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// cutCredentials splits a URL that is not clear: everything before the last @ may belong to a
// password.
func cutCredentials(raw string) (credentials, rest string) {
	scheme, rest, _ := strings.Cut(raw, "://")
	at := strings.LastIndexByte(rest, '@')
	return rest[:max(at, 0)], scheme + "://" + rest[at+1:]
}

// WithoutCredentials removes the user and the password from a URL.
func WithoutCredentials(raw string) string {
	if !isClear(raw) {
		_, rest := cutCredentials(raw)
		return rest
	}
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		u.User = nil
		return u.String()
	}
	return raw
}

// credentialEnv returns variables that pass the credentials of a URL to git, and the URL without
// them. Other users of this machine cannot read the environment.
func credentialEnv(raw string) (env []string, address string) {
	if !isClear(raw) {
		return nil, WithoutCredentials(raw)
	}
	u, err := url.Parse(raw)
	if err != nil || u.User == nil {
		return nil, raw
	}
	password, given := u.User.Password()
	switch {
	case u.Scheme == "https" || u.Scheme == "http":
	case given:
		u.User = url.User(u.User.Username()) // no other transport accepts a password
		return nil, u.String()
	default:
		return nil, raw
	}
	basic := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
	return []string{
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=http." + u.Scheme + "://" + u.Host + ".extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: Basic " + basic,
	}, WithoutCredentials(raw)
}

// SecretsOf returns the secret parts of a URL.
func SecretsOf(raw string) []string {
	if !isClear(raw) {
		credentials, _ := cutCredentials(raw)
		_, password, _ := strings.Cut(credentials, ":")
		return []string{credentials, password}
	}
	u, err := url.Parse(raw)
	if err != nil || u.User == nil {
		return nil
	}
	secrets := []string{u.User.String()}
	if p, ok := u.User.Password(); ok && p != "" {
		secrets = append(secrets, p, url.QueryEscape(p))
	}
	return secrets
}
