package gemini

import (
	"maps"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const (
	// programName is the program's usual name in PATH.
	programName = "gemini"
	npmPackage  = "@google/gemini-cli"
	// testedVersion is the version that this driver's tests run.
	testedVersion = "0.61.0"
	// minimumVersion is the oldest version that is known to work.
	minimumVersion = "0.61.0"
)

// Recipe returns how to install the program from npm. The program runs on Node and includes no
// search tool.
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
			runnerscripts.FeatureImages,
			runnerscripts.FeaturePDF,
			runnerscripts.FeatureTextFiles,
		},
	}
}

// Unasked returns tools that the program runs without a question.
func (Driver) Unasked() map[string]string {
	names := agent.OwnNames(
		"activate_skill", "enter_plan_mode", "get_internal_docs", "invoke_agent", "list_mcp_resources", "read_mcp_resource", "save_memory",
		"tracker_add_dependency", "tracker_create_task", "tracker_get_task", "tracker_list_tasks", "tracker_update_task", "tracker_visualize",
		"update_topic", "write_todos", // but not complete_task: subagents end with it
	)
	maps.Copy(names, agent.OwnNames(ownSubagents...))
	names["google_web_search"] = "WebSearch"
	return names
}
