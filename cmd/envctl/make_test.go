package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestAnEmptyValueIsNoFlagLeftOut(t *testing.T) {
	alone(t)
	for _, args := range [][]string{
		{"exec", "--image", "", "--", "true"},
		{"exec", "--sandbox", "", "--", "true"},
		{"exec", "-s", "", "--", "true"},
		{"exec", "--user", "", "--", "true"},
		{"exec", "", "--", "true"},
		{"create", "--image="},
		{"create", "-c", ""},
		{"run", "--image", "", "go"},
		{"run", "--network", "", "go"},
	} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, args)
		if code != exitUsage || out.Len() > 0 || !strings.Contains(errOut.String(), " is empty, ") {
			t.Errorf("%q: exit status %d\n%s%s", args, code, &out, &errOut)
		}
	}
}

func TestNoTextThatAFlagTakesMayBeEmpty(t *testing.T) {
	ofText := regexp.MustCompile(`--([a-z-]+) string `)
	var check func(cmd *cobra.Command, path ...string)
	check = func(cmd *cobra.Command, path ...string) {
		for _, sub := range cmd.Commands() {
			check(sub, append(slices.Clone(path), sub.Name())...)
		}
		for _, flag := range ofText.FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
			if err := cmd.ParseFlags([]string{"--" + flag[1] + "="}); err != nil {
				t.Errorf("%q --%s: %v", path, flag[1], err)
			}
			if err := refuseEmpty(cmd, nil); err == nil || !strings.Contains(err.Error(), "--"+flag[1]) {
				t.Errorf("%q --%s may be empty: %v", path, flag[1], err)
			}
			if err := cmd.ParseFlags([]string{"--" + flag[1] + "=x"}); err != nil {
				t.Errorf("%q --%s: %v", path, flag[1], err)
			}
		}
	}
	check((&app{}).newRootCmd())
}

func TestProcessorsAreANumberOrNone(t *testing.T) {
	for _, wrong := range []string{"-1", "nan", "inf", "two", ""} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), nil, &out, &errOut, []string{"create", "--cpus", wrong})
		if code != exitUsage || !strings.Contains(errOut.String(), "or 0 for no limit") {
			t.Errorf("%q: exit status %d\n%s", wrong, code, &errOut)
		}
	}
	for text, want := range map[string]float64{"": 2, "0": 0, "1.5": 1.5} {
		m := &makeFlags{}
		if text != "" {
			if err := m.cpus.Set(text); err != nil {
				t.Fatal(err)
			}
		}
		cfg := environment.Config{Sandbox: environment.Sandbox{Type: "docker", Spec: primitives.Spec{CPUs: 2}}}
		if err := m.apply(&cfg); err != nil || cfg.Sandbox.CPUs != map[bool]float64{true: -1, false: want}[want == 0] {
			t.Errorf("%q over 2: %v, %v", text, cfg.Sandbox.CPUs, err)
		}
	}
}

// TestALimitDoesNotChooseTheSandbox checks that a flag for a limit does not change the type of
// the sandbox.
func TestALimitDoesNotChooseTheSandbox(t *testing.T) {
	alone(t)
	for _, flag := range [][]string{{"--memory", "1g"}, {"--cpus", "1"}, {"--network", "none"}} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, append([]string{"create"}, flag...))
		if want := "sandbox." + flag[0][2:] + ": a local sandbox has none"; code == exitOK || !strings.Contains(errOut.String(), want) {
			t.Errorf("%q: exit status %d\n%s%s", flag, code, &out, &errOut)
		}
	}
}
