// Package egress decides which connections may leave a sandbox: which hosts the rules allow,
// which addresses a name may have, and whether a TLS client connects to the allowed host.
package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The default ports of a rule.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Target is a host and a port that a process in a sandbox wants to reach.
type Target struct {
	// Host is a name in lower case without a trailing dot, or an address in canonical form.
	Host string
	Port uint16
}

// String returns host:port.
func (t Target) String() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// IsAddress reports whether the host is an address. TLS clients do not name addresses.
func (t Target) IsAddress() bool {
	_, err := netip.ParseAddr(t.Host)
	return err == nil
}

// Rule returns the shortest rule that allows the target.
func (t Target) Rule() string {
	if t.Port == portHTTP || t.Port == portHTTPS {
		return t.Host
	}
	return t.String()
}

// ParseTarget parses host:port. port is the default for a text without a port.
func ParseTarget(text string, port uint16) (Target, error) {
	host, explicit, err := cutPort(text)
	if err != nil {
		return Target{}, err
	}
	if explicit != 0 {
		port = explicit
	}
	host, err = normalize(host)
	return Target{host, port}, err
}

// rule is one allowed host.
type rule struct {
	host string // empty means every host
	sub  bool   // only names below the host, not the host itself
	port uint16 // zero means 80 and 443
}

// Rules is a list of allowed hosts. The zero value allows no host.
type Rules struct{ rules []rule }

// ParseRules parses allowed hosts: a name ("example.com"), all names below one
// ("*.example.com"), an address, or "*" for every host, each with a port ("example.com:8443")
// or without, which means 80 and 443. The error says which rule is invalid and why.
func ParseRules(list []string) (Rules, error) {
	var all Rules
	for i, text := range list {
		r, err := parseRule(text)
		if err != nil {
			return Rules{}, fmt.Errorf("allow_hosts[%d]: %q: %w", i, text, err)
		}
		all.rules = append(all.rules, r)
	}
	return all, nil
}

func parseRule(text string) (rule, error) {
	if strings.Contains(text, "/") {
		return rule{}, errors.New("it is an address with a scheme or a path; leave the host only, as in example.com or example.com:8443")
	}
	host, port, err := cutPort(text)
	switch {
	case err != nil:
		return rule{}, err
	case host == "*":
		return rule{port: port}, nil
	}
	host, sub := strings.CutPrefix(host, "*.")
	if host, err = normalize(host); err != nil {
		return rule{}, err
	}
	address, err := netip.ParseAddr(host)
	switch {
	case err != nil:
	case sub:
		return rule{}, errors.New("there is nothing below an address; leave out the wildcard")
	default:
		if err := CheckAddress(address); err != nil {
			return rule{}, err
		}
	}
	return rule{host, sub, port}, nil
}

// Allow reports whether a rule allows the target.
func (r Rules) Allow(t Target) bool {
	return slices.ContainsFunc(r.rules, func(one rule) bool {
		switch {
		case one.port == 0 && t.Port != portHTTP && t.Port != portHTTPS, one.port != 0 && one.port != t.Port:
			return false
		case one.sub:
			return strings.HasSuffix(t.Host, "."+one.host)
		}
		return one.host == "" || one.host == t.Host
	})
}

// cutPort splits host:port. A port of zero means that there is none. An IPv6 address must have
// brackets before a port.
func cutPort(text string) (host string, port uint16, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		text = strings.TrimSuffix(inner, "]")
		if !strings.Contains(text, ":") {
			return "", 0, errHost
		}
		return text, 0, nil
	}
	if _, err := netip.ParseAddr(text); err == nil || !strings.Contains(text, ":") {
		return text, 0, nil
	}
	host, digits, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, errHost
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '0' || digits[0] == '+' {
		return "", 0, fmt.Errorf("%q is no port; give a number from 1 to 65535", digits)
	}
	if strings.HasPrefix(text, "[") != strings.Contains(host, ":") {
		return "", 0, errHost
	}
	return host, uint16(n), nil
}

var errHost = errors.New("it is no host; give a name of letters, digits, hyphens and dots, or an address, and a port if it is neither 80 nor 443")

// maxName is the maximum length of a name, and maxLabel that of one label.
const maxName, maxLabel = 253, 63

// normalize returns the canonical form of a name or an address. It refuses names that some
// systems read as an address, such as 2130706433 or 0x7f.1.
func normalize(host string) (string, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		if address.Zone() != "" {
			return "", errHost
		}
		return address.Unmap().String(), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	labels := strings.Split(host, ".")
	if len(host) > maxName || slices.ContainsFunc(labels, isNoLabel) || endsInNumber(labels[len(labels)-1]) {
		return "", errHost
	}
	return host, nil
}

func isNoLabel(label string) bool {
	return label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' ||
		strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
		})
}

// endsInNumber reports whether some systems would read a host with this last label as an
// address.
func endsInNumber(label string) bool {
	if rest, ok := strings.CutPrefix(label, "0x"); ok && strings.Trim(rest, "0123456789abcdef") == "" {
		return true
	}
	return strings.Trim(label, "0123456789") == ""
}
