package claude

import (
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const (
	npmPackage = "@anthropic-ai/claude-code"
	// testedVersion is the version that this driver's tests run.
	testedVersion = "2.1.329"
	// minimumVersion is the oldest working version: older ones lose the conversation of a
	// recreated sandbox.
	minimumVersion = "2.1.250"
)

// Recipe installs the program from npm. The program brings its own search tool; it also calls
// git and ps, and git fetches with the certificates.
func (Driver) Recipe() runnerscripts.Recipe {
	return runnerscripts.Recipe{
		Agent:   programName,
		Program: programName,
		Version: testedVersion,
		Minimum: minimumVersion,
		Debian:  []string{"ca-certificates", "git", "procps"},
		NPM:     []string{npmPackage + "@" + testedVersion},
		Supports: []runnerscripts.Feature{
			runnerscripts.FeatureModel,
			runnerscripts.FeaturePermissionMode,
			runnerscripts.FeatureMaxTurns,
			runnerscripts.FeatureSystemPrompt,
			runnerscripts.FeatureBudget,
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

// Unasked returns tools that the program runs without a question, in some mode or for some inputs. Agent is Task by another name.
func (Driver) Unasked() map[string]string {
	return agent.OwnNames(
		"Agent", "CronCreate", "CronDelete", "CronList", "EnterPlanMode", "EnterWorktree", "ExitWorktree", "ListAgents",
		"ListMcpResourcesTool", "ReadMcpResourceTool", "ReadNotifications", "RefreshMcpTools", "ReportFindings", "ScheduleWakeup", "SendMessage",
		"Skill", "Task", "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch", "WebSearch",
		"Workflow",
	)
}
