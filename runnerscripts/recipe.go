package runnerscripts

import (
	"regexp"
	"strconv"
	"strings"
)

// PrintRecipe is the command of envrunner that prints a [Result] whose data is a
// [Recipe]; its argument is the name of an agent. Without one the data is a list of
// those of all agents. It reads nothing.
const PrintRecipe = "recipe"

// Recipe says what an agent can do, and what it needs in a sandbox: an image is
// built, or a live sandbox completed, from it. All of it is pinned to what the
// runner was tested with. A recipe with an empty Program is complete: the runner
// plays the agent by itself, or the configuration names its program.
type Recipe struct {
	Agent string `json:"agent"`
	// Program is the command that starts the agent. Where it is in PATH, the
	// agent is installed.
	Program string `json:"program,omitempty"`
	// Version is the one that is installed.
	Version string `json:"version,omitempty"`
	// Minimum is the oldest version that is known to work. setup-session refuses an older
	// one with FailAgentOld. Empty means that there is no such bound.
	Minimum string `json:"minimum,omitempty"`
	// Debian names the packages of a Debian system that the agent uses.
	Debian []string `json:"debian,omitempty"`
	// NPM names the npm packages to install globally, each as name@version.
	NPM []string `json:"npm,omitempty"`
	// Supports is what the agent can do beyond answering prompts. What is not in
	// it is refused with FailUnsupported.
	Supports []Feature `json:"supports,omitempty"`
}

// TooOld reports whether a version of the agent, as its program tells it, is older than
// Minimum. Text without a version is not.
func (r Recipe) TooOld(version string) bool {
	has, least := versionNumbers(version), versionNumbers(r.Minimum)
	if has == nil || least == nil {
		return false
	}
	for i, n := range least {
		if i >= len(has) || has[i] != n {
			return i >= len(has) && n > 0 || i < len(has) && has[i] < n
		}
	}
	return false
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+`)

// versionNumbers are the parts of the first version in a text.
func versionNumbers(text string) []int {
	var list []int
	for part := range strings.SplitSeq(versionPattern.FindString(text), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}
