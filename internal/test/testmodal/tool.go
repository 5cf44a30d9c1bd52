package testmodal

import (
	"fmt"
	"os/exec"
)

// cpPath is the program that copies.
const cpPath = "/bin/cp"

// runTool runs a program of this machine; its output is part of the error.
func runTool(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, out)
	}
	return nil
}

// copyTree copies what is in a directory into another one that exists, with owners,
// modes, times, and the marks by which layers say what is gone.
func copyTree(from, to string) error {
	return runTool(&exec.Cmd{Path: cpPath, Args: []string{"cp", "-au", from + "/.", to}})
}
