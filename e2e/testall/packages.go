package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// module is the path of this module with a slash.
const module = "github.com/agentenv-dev/agentenv/"

// packages are the packages that have tests, by stage.
type packages struct{ quick, source, contracts, agents, floods []string }

// double matches the imports of tests that need an engine, agents or another machine.
var double = regexp.MustCompile(`internal/test/(testdocker|testagents|testssh|testmodal|testpostgres)$`)

// slow matches the packages whose tests need more than a moment although they import no double.
var slow = regexp.MustCompile(`^(internal/test/.*|internal/archive|primitives/guest|primitives/local|primitives/primitivestest|session/sessiontest|session/remote|server|` +
	`runnerscripts/runner|runnerscripts/runner/internal/drivertest|examples/unshared)$`)

// sourced matches the packages whose tests look for the source that they were built from.
var sourced = regexp.MustCompile(`^(runnerscripts/bundle|examples)$`)

// contract matches the packages below the agents.
var contract = regexp.MustCompile(`^(primitives/.*|internal/.*|runnerscripts/runner|examples/.*)$`)

// longest are the packages that take minutes. Of their stage they start first.
var longest = []string{"environment", "cmd/envctl", "runnerscripts/runner/internal/drivertest", "primitives/docker", "primitives/modal"}

// list returns the packages of the module.
func list(ctx context.Context) (all packages, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return packages{}, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	for dec := json.NewDecoder(&stdout); ; {
		var p struct {
			ImportPath, Dir                                      string
			TestGoFiles, XTestGoFiles, TestImports, XTestImports []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return packages{}, err
		}
		files := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if len(files) == 0 {
			continue
		}
		floods := slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !strings.HasSuffix(name, "_flood_test.go") })
		if len(floods) > 0 {
			all.floods = append(all.floods, p.ImportPath)
		}
		for _, name := range floods {
			if err := checkFlood(filepath.Join(p.Dir, name)); err != nil {
				return packages{}, err
			}
		}
		path := strings.TrimPrefix(p.ImportPath, module)
		switch {
		case sourced.MatchString(path):
			all.source = append(all.source, p.ImportPath)
		case !slow.MatchString(path) && !slices.ContainsFunc(slices.Concat(p.TestImports, p.XTestImports), double.MatchString):
			all.quick = append(all.quick, p.ImportPath)
		case contract.MatchString(path):
			all.contracts = append(all.contracts, p.ImportPath)
		default:
			all.agents = append(all.agents, p.ImportPath)
		}
	}
	for _, list := range [][]string{all.contracts, all.agents} {
		slices.SortStableFunc(list, func(a, b string) int { return rank(a) - rank(b) })
	}
	return all, nil
}

func rank(path string) int {
	if i := slices.Index(longest, strings.TrimPrefix(path, module)); i >= 0 {
		return i
	}
	return len(longest)
}

// test matches the declaration of a test.
var test = regexp.MustCompile(`(?m)^func (Test\w*)`)

// checkFlood returns an error if a file of floods has a test that no stage would run.
func checkFlood(name string) error {
	source, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for _, found := range test.FindAllStringSubmatch(string(source), -1) {
		if !strings.HasPrefix(found[1], "TestFlood") {
			return fmt.Errorf("%s: %s would never run: the names of tests in such files begin with TestFlood", name, found[1])
		}
	}
	return nil
}
