package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// claims maps the promises of README.md to the tests that fail if a promise is broken: a folder
// and the name of a test, or of a contract case, which each kind of sandbox runs.
var claims = map[string][]string{
	"When the program ends, what it started ends with it, unless it is kept.": {
		"primitives/primitivestest: a killed program takes its commands and listeners along, not those of others",
		"primitives/local: TestNothingOutlivesAKilledProgram", "primitives/local: TestNothingOutlivesAProgramThatLeavesItsSandbox",
		"primitives/docker: TestAProgramThatIsKilledLeavesNothing", "primitives/modal: TestAProgramThatIsKilledWhileItMakesASandboxLeavesNothing",
		"primitives/ssh: TestAKilledProgramLeavesNoConnection",
		"primitives/local: TestContract", "primitives/docker: TestContract", "primitives/modal: TestContract", "primitives/ssh: TestContract",
		"primitives/local: TestAKeptSandboxOutlivesItsProgramWithItsDurableCommands",
	},
	"Switch sandboxes by changing one word.": {"environment: TestOneWordOfTheConfigurationChoosesTheSandbox"},
	"unknown keys are errors":                {"environment: TestParseConfigIsStrict"},
	"one event a line, numbered without a gap": {
		"session: TestEveryReaderSeesEveryEventOnceFromWhereItAsked", "cmd/envctl: TestScripts",
	},
	"One contract.": {"primitives/primitivestest: TestMutants", "primitives/primitivestest: TestMutantsOfKilledPrograms"},
	"Nothing is left.": {
		"primitives/local: TestNothingOutlivesAKilledProgram", "primitives/local: TestASandboxOfADeadOwnerEndsWhenNobodyIsAttachedAnyMore",
		"primitives/local: TestAKeptSandboxOutlivesItsProgramWithItsDurableCommands",
	},
	"Nothing of the host leaks in.": {
		"primitives/local: TestCommandsDoNotInheritTheEnvironmentOfTheHost", "environment: TestTheEnvironmentOfAScriptIsAnAllowList",
		"runnerscripts/runner/internal/gemini: TestWorkspaceBringsNothingUnlessTrusted", "runnerscripts/runner/internal/codex: TestWorkspacesHooksRunOnlyIfItIsTrusted",
	},
	"Nothing is lost in silence.": {
		"runnerscripts: TestLineOverTheLimitIsErrLimitThatNamesIt", "runnerscripts: TestUnknownTypeIsCarriedWithItsJSON",
		"environment: TestMisbehavingScripts", "primitives/local: TestOutputUpToItsLimitIsWhole",
	},
}

func TestTheClaimsOfTheReadmeHaveTests(t *testing.T) {
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := strings.Join(strings.Fields(string(data)), " ")
	for claim, tests := range claims {
		if !strings.Contains(readme, claim) {
			t.Errorf("README.md does not say %q", claim)
		}
		for _, test := range tests {
			folder, name, _ := strings.Cut(test, ": ")
			if !hasTest(t, filepath.Join("..", folder), name) {
				t.Errorf("%q: %s has no test %q", claim, folder, name)
			}
		}
	}
	_, holds, _ := strings.Cut(string(data), "## What holds")
	holds, _, _ = strings.Cut(holds, "\n## ")
	bold := regexp.MustCompile(`\*\*([^*]+)\*\*`).FindAllStringSubmatch(holds, -1)
	if len(bold) == 0 {
		t.Error("README.md says nothing under 'What holds'")
	}
	for _, b := range bold {
		if claims[b[1]] == nil {
			t.Errorf("README.md says %q, and no test is named for that", b[1])
		}
	}
}

// hasTest looks for the declaration of a test, or for a case of the contract.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(code), "func "+name+"(") || strings.Contains(string(code), `name: "`+name+`"`) {
			return true
		}
	}
	return false
}
