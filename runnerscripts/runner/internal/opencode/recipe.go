package opencode

import (
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const (
	npmPackage = "opencode-ai"
	// packagePrefix is the prefix of the names of that package and of the packages for a platform.
	packagePrefix = "opencode-"
	// testedVersion is the version that this driver's tests run.
	testedVersion = "1.18.33"
	// minimumVersion is the oldest version that is known to work.
	minimumVersion = "1.18.33"
)

// Recipe installs the program from npm. The program calls git, which needs the certificates, and
// ripgrep, which it would otherwise fetch from GitHub.
func (Driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent:   programName,
		Program: programName,
		Version: testedVersion,
		Minimum: minimumVersion,
		Debian:  []string{"ca-certificates", "git", "ripgrep"},
		NPM:     []string{npmPackage + "@" + testedVersion},
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureModel,
			runnerscripts.FeaturePermissionMode,
			runnerscripts.FeatureMaxTurns,
			runnerscripts.FeatureSystemPrompt,
			runnerscripts.FeatureAllowedTools,
			runnerscripts.FeatureDeniedTools,
			runnerscripts.FeatureRules,
			runnerscripts.FeatureSkills,
			runnerscripts.FeatureCommands,
			runnerscripts.FeatureSubagents,
			runnerscripts.FeatureHooks,
			runnerscripts.FeatureMCPStdio,
			runnerscripts.FeatureMCPHTTP,
			runnerscripts.FeaturePlugins,
			runnerscripts.FeaturePermissions,
			runnerscripts.FeatureAllowAlways,
			runnerscripts.FeatureInterrupt,
			runnerscripts.FeatureSetMode,
			runnerscripts.FeatureSetModel,
			runnerscripts.FeatureResume,
			runnerscripts.FeatureThinking,
			runnerscripts.FeatureUsage,
			runnerscripts.FeatureCost,
			runnerscripts.FeatureImages,
			runnerscripts.FeaturePDF,
			runnerscripts.FeatureTextFiles,
		},
	}
}

// Unasked returns tools that the program runs without a question.
func (Driver) Unasked() map[string]string {
	names := agent.OwnNames("codesearch", "skill", "task", "todoread", "todowrite")
	names["websearch"] = "WebSearch"
	return names
}
