package egress

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct{ yes, no string }{
		"example.com":         {"example.com:443 EXAMPLE.com.:80", "example.com:8443 a.example.com:443 example.org:443 notexample.com:443"},
		"Example.COM.:8443":   {"example.com:8443", "example.com:443 example.com:80"},
		"*.example.com":       {"a.example.com:443 a.b.example.com:80", "example.com:443 a.example.com:22 aexample.com:443"},
		"*.example.com:443":   {"a.example.com:443", "a.example.com:80"},
		"*":                   {"example.com:443 93.184.216.34:80 [2606:2800:220:1::1]:443", "example.com:22"},
		"*:22":                {"example.com:22", "example.com:443"},
		"93.184.216.34":       {"93.184.216.34:443 [::ffff:93.184.216.34]:80", "93.184.216.35:443"},
		"[2606:2800::1]:8443": {"[2606:2800:0::1]:8443", "[2606:2800::1]:443"},
		"2606:2800::1":        {"[2606:2800::1]:443", "[2606:2800::2]:443"},
	} {
		rules, err := ParseRules([]string{rule})
		if err != nil {
			t.Errorf("%s: %v", rule, err)
		}
		for _, list := range []struct {
			targets string
			want    bool
		}{{c.yes, true}, {c.no, false}} {
			for text := range strings.FieldsSeq(list.targets) {
				target, err := ParseTarget(text, 0)
				if err != nil || rules.Allow(target) != list.want {
					t.Errorf("%s: %s: %v, %v", rule, text, !list.want, err)
				}
			}
		}
	}
	if target, err := ParseTarget("a.example", 80); err != nil || target.String() != "a.example:80" || (Rules{}).Allow(target) || target.Rule() != "a.example" {
		t.Errorf("got %v, %v", target, err)
	}
}

// noHosts are texts that are neither names nor addresses, though some systems accept them.
var noHosts = []string{
	"", ".", "..", "a..b", "-a.b", "a-.b", "a b", "a\nb", "a\x00b", "a%00b", "a@b", "user@example.com", "a:b", "a:0", "a:65536", "a:+1", "a:01", "a:", "a:1:2", ":80", "münchen.example",
	"2130706433", "0177.0.0.1", "127.1", "0x7f.0.0.1", "0x7f000001", "127.0.0.0x1", "1.2.3.4.", "1.2.3.256", "[1.2.3.4]", "[example.com]:80", "[fe80::1%eth0]:80", "fe80::1%eth0", "[::1", "::1]", "[::1]x",
	"a*.example.com", "**", "a.*", "*.", "*.*.example.com", "ex?mple.com", strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "aa",
}

func TestWhatIsNoHost(t *testing.T) {
	t.Parallel()
	for _, text := range append(noHosts, "https://example.com", "example.com/path", "*.93.184.216.34") {
		if rules, err := ParseRules([]string{"example.com", text}); err == nil {
			t.Errorf("%q is a rule: %+v", text, rules)
		} else if !strings.Contains(err.Error(), "allow_hosts[1]") {
			t.Error(err)
		}
		if target, err := ParseTarget(text, 80); err == nil {
			t.Errorf("%q is a target: %+v", text, target)
		}
	}
	for _, text := range []string{"127.0.0.1", "[::1]:80", "169.254.169.254", "10.0.0.1", "::ffff:192.168.0.1", "fd00:ec2::254"} {
		var private *AddressError
		if _, err := ParseRules([]string{text}); !errors.As(err, &private) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestOnlyPublicAddressesAreReached(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0.0.0.0", "127.0.0.1", "127.255.0.9", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16",
		"198.18.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "fe80::1%lo", "fd00:ec2::254", "fec0::1", "ff02::1",
		"64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "100::1",
	} {
		if err := CheckAddress(netip.MustParseAddr(text)); err == nil {
			t.Errorf("%s is public", text)
		}
	}
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1"} {
		if err := CheckAddress(netip.MustParseAddr(text)); err != nil {
			t.Error(err)
		}
	}
}

// FuzzRule looks for rules and targets that are parsed as other hosts than their text.
func FuzzRule(f *testing.F) {
	for _, text := range append(noHosts, "example.com", "*.example.com:443", "[2606:2800::1]:8443", "*") {
		f.Add(text, "a.example.com:443")
	}
	f.Fuzz(func(t *testing.T, rule, text string) {
		target, err := ParseTarget(text, 443)
		if err != nil {
			return
		}
		again, err := ParseTarget(target.String(), 1)
		if err != nil || again != target {
			t.Fatalf("%q is %v, and that %v, %v", text, target, again, err)
		}
		if address, err := netip.ParseAddr(target.Host); err == nil && CheckAddress(address) != nil {
			return // no rule can allow it
		}
		own, err := ParseRules([]string{target.Rule()})
		if err != nil || !own.Allow(target) {
			t.Fatalf("the rule %q does not allow %v: %v", target.Rule(), target, err)
		}
		rules, err := ParseRules([]string{rule})
		if err != nil || !rules.Allow(target) {
			return
		}
		if name := strings.ToLower(strings.TrimPrefix(rule, "*.")); rule[0] != '*' && !target.IsAddress() && !strings.HasPrefix(name, target.Host) {
			t.Fatalf("%q allows %v", rule, target)
		}
	})
}
