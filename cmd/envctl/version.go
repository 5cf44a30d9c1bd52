package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// versionInfo is the output of version.
type versionInfo struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"` // of the runner scripts
	Guest    int    `json:"guest"`    // version of the guest protocol
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) newVersionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Args:    cobra.NoArgs,
		Example: "  envctl version --json",
		RunE: func(*cobra.Command, []string) error {
			v := currentVersion()
			if asJSON {
				return json.NewEncoder(a.out).Encode(v)
			}
			_, err := fmt.Fprintln(a.out, "envctl", v)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (v versionInfo) String() string {
	return fmt.Sprintf("%s (runner protocol %d, guest protocol %d, %s, %s)", v.Version, v.Protocol, v.Guest, v.Go, v.Platform)
}

func currentVersion() versionInfo {
	v := versionInfo{
		Version: "devel", Protocol: runnerscripts.Protocol, Guest: guest.Version,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	return v
}
