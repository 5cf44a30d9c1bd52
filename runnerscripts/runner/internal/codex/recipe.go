package codex

import "github.com/agentenv-dev/agentenv/runnerscripts"

const (
	npmPackage = "@openai/codex"
	// testedVersion is the version that this driver's tests run.
	testedVersion = "0.169.0"
	// minimumVersion is the oldest working version: 0.166.0 cannot start a conversation with a
	// configured provider.
	minimumVersion = "0.169.0"
)

// Recipe returns how to install the program from npm, which selects the platform's package. The
// program runs without Node (see native) and includes a search tool. It calls git, which needs the
// certificates to fetch.
func (Driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent:   agentName,
		Program: programName,
		Version: testedVersion,
		Minimum: minimumVersion,
		Debian:  []string{"ca-certificates", "git"},
		NPM:     []string{npmPackage + "@" + testedVersion},
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureModel,
			runnerscripts.FeaturePermissionMode,
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
			runnerscripts.FeaturePermissions,
			runnerscripts.FeatureAllowAlways,
			runnerscripts.FeatureInterrupt,
			runnerscripts.FeatureSetMode,
			runnerscripts.FeatureSetModel,
			runnerscripts.FeatureResume,
			runnerscripts.FeatureThinking,
			runnerscripts.FeatureUsage,
			runnerscripts.FeatureImages,
			runnerscripts.FeatureTextFiles,
		},
	}
}

// Unasked returns tools that the program runs without a question.
func (Driver) Unasked() map[string]string {
	return map[string]string{toolSearch: "WebSearch", toolAgents: toolAgents}
}
