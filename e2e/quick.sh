#!/usr/bin/env bash
# Runs the tests that need neither an engine nor agents nor another machine: those of
# packages whose tests use no double of these, and the contract on the local engine.
# Without the race detector. What it leaves out `task test` runs.
set -euo pipefail
cd "$(dirname "$0")/.."
quick=$(go list -f '{{.ImportPath}} {{.TestGoFiles}} {{.XTestGoFiles}} {{.TestImports}} {{.XTestImports}}' ./... |
  grep -v ' \[\] \[\] \[\] \[\]$' |
  grep -vE 'internal/test/(testdocker|testagents|testssh|testmodal)|^[^ ]*/(internal/test/.*|drivertest|internal/archive|primitives/guest|primitivestest|runnerscripts/runner|bundle|examples/unshared) ' |
  cut -d' ' -f1)
# shellcheck disable=SC2086 # a list
go test "$@" $quick
