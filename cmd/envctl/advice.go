package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentenv-dev/agentenv/internal/closest"
)

// meant returns advice for a name that is not in names.
func meant(given string, names []string) string {
	if name := closest.Name(given, names); name != "" {
		return "did you mean " + name + "?"
	}
	return "choose one of " + strings.Join(names, ", ")
}

// flagMeant returns advice for a flag that a command does not have.
func flagMeant(cmd *cobra.Command, err error) string {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if name := closest.Name(unknown.GetSpecifiedName(), names); name != "" && len(unknown.GetSpecifiedName()) > 1 {
			return "did you mean --" + name + "?"
		}
	}
	if cmd.HasSubCommands() && strings.HasSuffix(err.Error(), " in -v") {
		return "-v stands after the command, as in 'envctl run -v'"
	}
	return fmt.Sprintf("see '%s --help'", cmd.CommandPath())
}
