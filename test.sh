#!/usr/bin/env bash
# Installs what apt lacks, builds everything, and runs every test.  Needs no network after apt and no GPU.
#   ./test.sh [ctest options]
# Builds in ./build-test (or $ATTNKIT_BUILD).
set -euo pipefail
cd "$(dirname "$0")"
. .ci/packages.sh

install_packages "${build_packages[@]}" "${test_packages[@]}"
build=${ATTNKIT_BUILD:-build-test}
generator=()
[ -f "$build/CMakeCache.txt" ] || generator=(-G Ninja)
werror=OFF
[ "${CI:-}" = true ] && werror=ON
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake -B "$build" "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Release -DATTNKIT_TESTS=ON -DATTNKIT_WERROR="$werror"
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
