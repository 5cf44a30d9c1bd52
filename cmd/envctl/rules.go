package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/permission"
)

// ruleFlags are the flags with rules for what agents may do.
type ruleFlags struct {
	allow, deny []string
}

func (f *ruleFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringArrayVar(&f.allow, "allow", nil, "what the agent may do without asking, as 'Bash(go test *)'; may be repeated")
	fl.StringArrayVar(&f.deny, "deny", nil, "what the agent may not do, as 'Bash(git push *)'; may be repeated")
}

// addTo adds the rules of the flags to others.
func (f *ruleFlags) addTo(to *permission.Rules) error {
	for _, list := range []struct {
		flag  string
		texts []string
		to    *[]string
	}{{"allow", f.allow, &to.Allow}, {"deny", f.deny, &to.Deny}} {
		for _, text := range list.texts {
			if _, err := permission.ParseRule(text); err != nil {
				return usagef("--%s: %w", list.flag, err)
			}
		}
		*list.to = slices.Concat(*list.to, list.texts)
	}
	return nil
}
