#!/usr/bin/env bash
# Installs what apt lacks, builds attnkit, and translates English phrases to German with the shipped model.
#   ./quickstart.sh ["phrase" ...]
# Builds in ./build (or $ATTNKIT_BUILD); run it as often as you like.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/packages.sh

install_packages "${build_packages[@]}"
build=${ATTNKIT_BUILD:-build}
generator=()
[ -f "$build/CMakeCache.txt" ] || generator=(-G Ninja)
echo "building in $build (a few minutes the first time)"
cmake -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DATTNKIT_TESTS=OFF >"/tmp/attnkit-quickstart.$$.log" 2>&1 &&
  cmake --build "$build" >>"/tmp/attnkit-quickstart.$$.log" 2>&1 ||
  { tail -40 "/tmp/attnkit-quickstart.$$.log" >&2; echo "the build failed; all of it: /tmp/attnkit-quickstart.$$.log" >&2; exit 1; }
rm -f "/tmp/attnkit-quickstart.$$.log"

[ $# -gt 0 ] || set -- \
  "two hundred and forty-one euros" \
  "half past three ; the twenty-first ; one million" \
  "the third of march"
texts=()
for phrase in "$@"; do texts+=(--text "$phrase"); done
exec "$build/bin/attnkit" run samples/models/numbers-en-de/model.toml "${texts[@]}"
