#!/usr/bin/env bash
# Installs what the tests need and is missing. Safe to run again; takes a second when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin # where dockerd and debootstrap are

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
install_debian /usr/bin/pip3 python3-pip # a sandbox that has this machine's /usr installs with it
install_debian ssh-keygen openssh-client                    # for engines that are reached by ssh;
[ -x /usr/sbin/sshd ] || install_debian sshd openssh-server # tests start their own on the loopback device
# PostgreSQL: tests start servers of their own, so Debian's package makes and starts none.
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' | $sudo tee /etc/postgresql-common/createcluster.conf >/dev/null
  install_debian /usr/lib/postgresql/initdb postgresql # a name that is no command: it is in no PATH
fi

# A Docker engine: Debian's, started here if none answers.
install_debian dockerd docker.io iptables
install_debian runsc runsc            # gVisor, a runtime for it
install_debian busybox busybox-static # for images: no registry is needed
install_debian ip iproute2            # for a server in another network
if ! docker version >/dev/null 2>&1; then
  if [ "$(id -u)" != 0 ]; then
    say "please start the Docker engine, or add this user to the group docker, and run this again"
    exit 1
  fi
  say "starting the Docker engine"
  log=$(mktemp -t dockerd.XXXXXX.log)
  setsid nohup dockerd >"$log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    docker version >/dev/null 2>&1 && break
    sleep 0.2
  done
  docker version >/dev/null 2>&1 || {
    say "the Docker engine did not start; its log ends with:"
    tail -20 "$log" >&2
    exit 1
  }
fi
install_debian debootstrap debootstrap debian-archive-keyring ca-certificates
bash internal/test/testdocker/debian.sh
bash internal/test/testdocker/node.sh

# The real agents, exactly the versions of the lock file.
agents=e2e/agents
if ! cmp -s "$agents/package-lock.json" "$agents/node_modules/.installed-lock.json"; then
  say "installing the pinned agents from npm"
  npm ci --prefix "$agents" --no-audit --no-fund --loglevel=error >&2
  cp "$agents/package-lock.json" "$agents/node_modules/.installed-lock.json"
fi
say "ready"
