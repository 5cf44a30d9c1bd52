package main

import (
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
)

// logFlags are the flags for logging to standard error. Without them nothing is logged.
type logFlags struct {
	verbose, asJSON bool
	level           string
}

func (l *logFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&l.verbose, "verbose", "v", false, "log what agentenv does to standard error: --log-level debug")
	f.StringVar(&l.level, "log-level", "", "log to standard error from this level on: debug, info, warn or error")
	f.BoolVar(&l.asJSON, "log-json", false, "log one JSON object a line, from level info on without --log-level")
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
}

// logger returns a logger that writes to w; nil if nothing is logged.
func (l *logFlags) logger(w io.Writer) (hclog.Logger, error) {
	level := hclog.LevelFromString(l.level)
	switch {
	case l.level != "" && (level < hclog.Debug || level > hclog.Error):
		return nil, usagef("--log-level %q is none of debug, info, warn and error", l.level)
	case l.level != "":
	case l.verbose:
		level = hclog.Debug
	case l.asJSON:
		level = hclog.Info
	default:
		return nil, nil
	}
	return hclog.New(&hclog.LoggerOptions{Name: "agentenv", Level: level, Output: w, JSONFormat: l.asJSON}), nil
}
