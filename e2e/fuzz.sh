#!/usr/bin/env bash
# Fuzzes everything that reads what a sandbox, a script or a peer sends: every fuzz test there is, 30 s each (or $1).
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
for pkg in $(go list ./...); do
  for fuzz in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
    echo "== $pkg $fuzz"
    go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time" "$pkg"
  done
done
