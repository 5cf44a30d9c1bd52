package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/internal/test/testssh"
)

// TestOnAnotherMachine runs the scripts in testdata/ssh through a real sshd.
func TestOnAnotherMachine(t *testing.T) {
	testssh.Start(t)
	runScripts(t, testscript.Params{Dir: "testdata/ssh"}, nil, "sandbox: {type: ssh, ssh: {host: "+testssh.Alias+"}}\n")
}
