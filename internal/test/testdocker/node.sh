#!/usr/bin/env bash
# Makes the image of the tests that is like node:22-bookworm-slim, unless the engine
# has it: the Debian image with node and npm from npm's registry, checked against the
# lock file. The name's tag is the digest of all of these: see node.go.
set -euo pipefail
cd "$(dirname "$0")"
debian=agentenv-test-debian:$(cat debian.sh /etc/ssl/certs/ca-certificates.crt | sha256sum | head -c 16)

repository=agentenv-test-node
ref=$repository:$( (printf %s "$debian" && cat node.sh node/package-lock.json) | sha256sum | head -c 16)
if docker image inspect "$ref" >/dev/null 2>&1; then
  exit 0
fi
printf 'setup: %s\n' "making the image $ref from npm's packages (a quarter of a minute)" >&2

work=$(mktemp -d -t agentenv-node.XXXXXX)
container=
clean() {
  rm -rf "$work"
  [ -z "$container" ] || docker container rm --force "$container" >/dev/null
}
trap clean EXIT
trap 'exit 130' INT TERM

cp node/package.json node/package-lock.json "$work"
npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
usr=$work/root/usr/local
mkdir -p "$usr/bin" "$usr/lib/node_modules"
cp "$work"/node_modules/node-linux-*/bin/node "$usr/bin/node"
mv "$work/node_modules/npm" "$usr/lib/node_modules/npm"
for name in npm npx; do
  ln -s "../lib/node_modules/npm/bin/$name-cli.js" "$usr/bin/$name"
done
container=$(docker container create "$debian")
tar -C "$work/root" --owner=0 --group=0 --numeric-owner -c . | docker container cp - "$container:/"
docker container commit --change 'CMD ["node"]' "$container" "$ref" >/dev/null

# Images of earlier versions, with those that tests have built on them; one that is
# in use stays.
docker image ls --format '{{.Repository}}:{{.Tag}}' "$repository" | grep -vx "$ref" | while read -r old; do
  docker image ls --filter "label=dev.agentenv.image.base=$old" --format '{{.Repository}}:{{.Tag}}' | xargs -r docker image rm
  docker image rm "$old"
done >/dev/null 2>&1 || true
