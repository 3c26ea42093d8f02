#!/usr/bin/env bash
# Installs what apt lacks, builds attnkit, screens the 64 placements of the model of numbers and translates with the first; the model of real text runs as it ships.
#   ./quickstart.sh ["phrase" ...]    with phrases: translates them instead
# Builds in ./build (or $ATTNKIT_BUILD) and searches in its folder search; run it as often as you like.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh

install_packages "${build_packages[@]}"
build=${ATTNKIT_BUILD:-build}
echo "building in $build (a few minutes the first time)"
# Models run on the CPU: variants for CUDA, minutes of nvcc, would serve nothing here.
log=$(mktemp --tmpdir attnkit-quickstart.XXXXXX)
configure "$build" -DATTNKIT_TESTS=OFF -DATTNKIT_CUDA=OFF >"$log" 2>&1 &&
  cmake --build "$build" >>"$log" 2>&1 ||
  { tail -40 "$log" >&2; echo "the build failed; all of it: $log" >&2; exit 1; }
rm -f "$log"

model=samples/models/numbers-en-de/model.toml
if [ $# -gt 0 ]; then
  texts=()
  for phrase in "$@"; do texts+=(--text "$phrase"); done
  exec "$build/bin/attnkit" run "$model" "${texts[@]}"
fi

echo "numbers-en-de: screening the 64 placements of four mechanisms in three blocks (up to a minute on two cores)"
rm -rf "$build/search"
"$build/bin/attnkit" search "$model" --output "$build/search" --quick --finalists 2
echo
echo "translating with the first of them:"
"$build/bin/attnkit" run "$build/search/winner.toml" --text "two hundred and forty-one euros" \
  --text "half past three ; the twenty-first ; one million"
echo
echo "real text, by a model that Debian's own packages taught, with the winner of a search that was made for it (docs/benchmarks/debian-en-de.md):"
"$build/bin/attnkit" run samples/models/debian-en-de/translator.toml --text "The file could not be opened because it does not exist." \
  --text "Select the cells that you want to copy, and click on the icon."
