package testmodal

import (
	"fmt"
	"os/exec"
)

// cpPath is the path of cp.
const cpPath = "/bin/cp"

// runTool runs a program of this machine. The error contains its output.
func runTool(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, out)
	}
	return nil
}

// copyTree copies the content of a directory into another existing one, with owners, modes,
// times, and the overlay's marks for deleted files.
func copyTree(from, to string) error {
	return runTool(&exec.Cmd{Path: cpPath, Args: []string{"cp", "-au", from + "/.", to}})
}
