#!/usr/bin/env bash
# Makes the Debian image of the tests with debootstrap and docker import, unless
# the engine has it. The name's tag is the digest of this script and of this
# machine's certificates, which the image trusts, too: see debian.go.
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }

suite=bookworm
certificates=/etc/ssl/certs/ca-certificates.crt
repository=agentenv-test-debian
[ -r "$certificates" ] || {
  say "please install the package ca-certificates and run this again: $certificates is missing"
  exit 1
}
ref=$repository:$(cat "$0" "$certificates" | sha256sum | head -c 16)
if docker image inspect "$ref" >/dev/null 2>&1; then
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  say "please run this once as root, which debootstrap needs to make a Debian image: sudo bash $0"
  exit 1
fi

say "making the image $ref from Debian's packages (half a minute)"
work=$(mktemp -d -t agentenv-debian.XXXXXX)
clean() {
  local inner
  # debootstrap leaves mounts behind when it is interrupted.
  while read -r inner; do umount "$inner"; done < <(findmnt -rno TARGET | grep "^$work/" | sort -r)
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
root=$work/root
debootstrap --variant=minbase "$suite" "$root" >"$work/log" 2>&1 || {
  say "debootstrap failed; its output ends with:"
  tail -20 "$work/log" >&2
  exit 1
}

chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash tester
# Twice: for now, and for when the package ca-certificates makes the first anew.
install -D -m 644 "$certificates" "$root$certificates"
install -D -m 644 "$certificates" "$root/usr/local/share/ca-certificates/host.crt"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{doc,info,locale,man}/* "$root"/{dev,proc,sys,run,tmp}/*
printf 'path-exclude /usr/share/%s/*\n' doc info locale man >"$root/etc/dpkg/dpkg.cfg.d/lean"

tar -C "$root" --numeric-owner -c . | docker import \
  --change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
  --change "ENV SSL_CERT_FILE=$certificates" \
  --change "ENV NODE_EXTRA_CA_CERTS=$certificates" \
  --change "ENV IMAGE_MARK=from-image" \
  --change 'CMD ["bash"]' \
  - "$ref" >/dev/null

# Images of earlier versions of this script; one that is in use stays.
docker image ls --format '{{.Repository}}:{{.Tag}}' "$repository" | grep -vx "$ref" |
  xargs -r docker image rm >/dev/null 2>&1 || true
