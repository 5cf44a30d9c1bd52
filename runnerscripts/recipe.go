package runnerscripts

import (
	"regexp"
	"strconv"
	"strings"
)

// PrintRecipe is the envrunner command that prints a [Result] whose data is a [Recipe]. Its
// argument is the name of an agent; without one the data is a list of all recipes. The command
// reads no input.
const PrintRecipe = "recipe"

// Recipe says what an agent can do, and what it needs in a sandbox. Images are built, and live
// sandboxes completed, from it. All of it is pinned to what the runner was tested with. A recipe
// with an empty Program is complete: the runner implements the agent itself, or the configuration
// names its program.
type Recipe struct {
	Agent string `json:"agent"`
	// Program is the command that starts the agent. If it is in PATH, the agent is installed.
	Program string `json:"program,omitempty"`
	// Version is the version to install.
	Version string `json:"version,omitempty"`
	// Minimum is the oldest version that is known to work. setup-session refuses an older one with
	// FailAgentOld. Empty means no minimum.
	Minimum string `json:"minimum,omitempty"`
	// Debian names the packages of a Debian system that the agent uses.
	Debian []string `json:"debian,omitempty"`
	// NPM names the npm packages to install globally, each as name@version.
	NPM []string `json:"npm,omitempty"`
	// Supports lists what the agent can do beyond answering prompts. Any other feature is refused
	// with FailUnsupported.
	Supports []Feature `json:"supports,omitempty"`
}

// TooOld reports whether version, as the agent's program prints it, is older than Minimum. A text
// without a version is not too old.
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

// versionNumbers returns the parts of the first version in a text.
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
