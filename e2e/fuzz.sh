#!/usr/bin/env bash
# Fuzzes everything that reads what a sandbox, a script or a peer sends: every fuzz test there is, 30 s each (or $1).
# A target that comes to fewer than 200 executions (or $2) fails: it fuzzes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
least=${2:-200}
failed=()
for pkg in $(go list ./...); do
  for fuzz in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
    echo "== $pkg $fuzz"
    log=$(mktemp)
    # Without a bound Go spends the whole time on making the first input of interest smaller.
    go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time" -fuzzminimizetime 20x "$pkg" 2>&1 | tee "$log" || failed+=("$pkg $fuzz")
    ran=$(sed -n 's/.*execs: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    rm "$log"
    if [ "${ran:-0}" -lt "$least" ]; then
      echo "only ${ran:-0} executions, want $least"
      failed+=("$pkg $fuzz")
    fi
  done
done
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
