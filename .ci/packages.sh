# Sourced by quickstart.sh and test.sh: installs the Debian packages that are missing, and nothing when none is.

build_packages=(g++ cmake ninja-build libboost-dev libboost-program-options-dev libfmt-dev
  libtbb-dev libtomlplusplus-dev nlohmann-json3-dev libssl-dev libkissfft-dev libsndfile1-dev
  gnuplot-nox)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev golang-go rustc python3 python3-num2words python3-babel)

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
