#!/usr/bin/env bash
# Installs what the tests need and is missing. Safe to run again; takes a second when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

# install_debian COMMAND PACKAGE... installs packages when the command is missing.
install_debian() {
  local command=$1
  shift
  command -v "$command" >/dev/null && return
  if ! command -v apt-get >/dev/null; then
    say "please install $command (Debian packages: $*) and run this again"
    exit 1
  fi
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  say "installing $* for $command"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_debian gcc gcc libc6-dev # the race detector links with it
install_debian git git ca-certificates
install_debian npm npm

# The real agents, exactly the versions of the lock file.
agents=e2e/agents
if ! cmp -s "$agents/package-lock.json" "$agents/node_modules/.installed-lock.json"; then
  say "installing the pinned agents from npm"
  npm ci --prefix "$agents" --no-audit --no-fund --loglevel=error >&2
  cp "$agents/package-lock.json" "$agents/node_modules/.installed-lock.json"
fi
say "ready"
