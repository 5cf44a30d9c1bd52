// Package egress decides what connections may leave a sandbox: which hosts rules allow, which
// addresses a name may mean, and whether a TLS client asks for the host that was allowed.
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

// The ports of a rule that names none.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Target is a host and a port that something in a sandbox wants to reach.
type Target struct {
	// Host is a name in lower case without a dot at its end, or an address in its usual form.
	Host string
	Port uint16
}

// String returns host:port.
func (t Target) String() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// IsAddress reports whether the host is an address, which no client names in TLS.
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

// ParseTarget reads host:port. A host without a port has the given one.
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
	host string // empty is every one
	sub  bool   // the names below the host, and not the host itself
	port uint16 // zero means 80 and 443
}

// Rules are allowed hosts. The zero value allows none.
type Rules struct{ rules []rule }

// ParseRules reads allowed hosts: a name ("example.com"), all names below one
// ("*.example.com"), an address, or "*" for every host, each with a port ("example.com:8443")
// or without, which means 80 and 443. Its error says which one is wrong and why.
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

// cutPort splits host:port; a port of zero means that there is none. An address of IPv6 needs
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

// maxName is how long a name may be, and maxLabel a part of it.
const maxName, maxLabel = 253, 63

// normalize returns the one form of a name or an address. A name that systems also read as an
// address, such as 2130706433 or 0x7f.1, is refused.
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

// endsInNumber reports whether a host with this last label is an address in a form that only
// some systems know.
func endsInNumber(label string) bool {
	if rest, ok := strings.CutPrefix(label, "0x"); ok && strings.Trim(rest, "0123456789abcdef") == "" {
		return true
	}
	return strings.Trim(label, "0123456789") == ""
}
