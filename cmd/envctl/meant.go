package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// meant advises somebody who gave a name that is none of those there are.
func meant(given string, names []string) string {
	if name := closest(given, names); name != "" {
		return "did you mean " + name + "?"
	}
	return "choose one of " + strings.Join(names, ", ")
}

// flagMeant advises somebody who gave a flag that a command does not have.
func flagMeant(cmd *cobra.Command, err error) string {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if name := closest(unknown.GetSpecifiedName(), names); name != "" && len(unknown.GetSpecifiedName()) > 1 {
			return "did you mean --" + name + "?"
		}
	}
	return fmt.Sprintf("see '%s --help'", cmd.CommandPath())
}

// closest returns the name that two edits at most lead to, or "".
func closest(given string, names []string) string {
	found, least := "", 3
	for _, name := range names {
		if d := edits(strings.ToLower(given), name); d < least && d < len(name) {
			found, least = name, d
		}
	}
	return found
}

// edits counts the characters to insert, remove or replace, and neighbors to swap, that
// make one text of another.
func edits(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
