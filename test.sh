#!/usr/bin/env bash
# Installs what apt lacks, builds everything, and runs every test.  Needs no network after apt and pip and no GPU.
#   ./test.sh [ctest options]
# Builds in ./build-test (or $ATTNKIT_BUILD).  Kernels for CUDA run as C++ on the emulator; with ATTNKIT_CUDA=ON nvcc compiles them too,
# for minutes, and what it made is tested, as .ci/run has it.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh

install_packages "${build_packages[@]}" "${test_packages[@]}"
install_torch
install_python_tools
build=${ATTNKIT_BUILD:-build-test}
cuda=${ATTNKIT_CUDA:-}
[ -n "$cuda" ] || [ -f "$build/CMakeCache.txt" ] || cuda=OFF
configure "$build" -DATTNKIT_TESTS=ON -DATTNKIT_STATIC=ON ${cuda:+-DATTNKIT_CUDA="$cuda"}
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
