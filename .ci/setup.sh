# Sourced by quickstart.sh, test.sh and run: installs Debian packages that are missing, configures the build tree.

build_packages=(g++ cmake ninja-build libboost-dev libboost-program-options-dev libfmt-dev
  libtbb-dev libtomlplusplus-dev nlohmann-json3-dev libssl-dev libkissfft-dev libsndfile1-dev
  gnuplot-nox)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev golang-go rustc python3 python3-num2words python3-babel
  clang-format-14)
ci_packages=(clang)

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing: ${missing[*]}"
  local run=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "not root and no sudo: install these first: ${missing[*]}" >&2; return 1; }
    run=(sudo)
  fi
  "${run[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# configure <folder> [cmake options]: the same options for the quickstart and the tests, so that they can share a tree.
configure() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DATTNKIT_WERROR=OFF)
  [ "${CI:-}" = true ] && options+=(-DATTNKIT_WERROR=ON)
  [ -f "$1/CMakeCache.txt" ] || options+=(-G Ninja)
  command -v ccache >/dev/null && options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake -B "$1" "${options[@]}" "${@:2}"
}
