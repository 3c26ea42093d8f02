#!/usr/bin/env bash
# Installs what apt lacks, builds everything, and runs every test.  Needs no network after apt and pip and no GPU.
#   ./test.sh [ctest options]
# Builds in ./build-test (or $ATTNKIT_BUILD).
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh

install_packages "${build_packages[@]}" "${test_packages[@]}"
install_torch
install_python_tools
build=${ATTNKIT_BUILD:-build-test}
configure "$build" -DATTNKIT_TESTS=ON -DATTNKIT_STATIC=ON -DATTNKIT_CUDA=ON
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
