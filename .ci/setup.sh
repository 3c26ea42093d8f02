# Sourced by quickstart.sh, test.sh and run: installs Debian packages that are missing, and torch for its tests, configures
# the build tree.

[[ -n ${HOME:-} ]] || unset HOME
export HOME=${HOME:-~}  # which a service may lack: ~ is that of the user

build_packages=(g++ cmake ninja-build libboost-dev libboost-program-options-dev libfmt-dev
  libtbb-dev libtomlplusplus-dev nlohmann-json3-dev libssl-dev libkissfft-dev libutf8proc-dev libpcre2-dev libyaml-cpp-dev zlib1g-dev libsndfile1-dev
  gnuplot-nox)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev valgrind golang-go pkg-config rustc cargo python3 python3-venv python3-num2words python3-babel
  clang-format-14 chromium espeak-ng dpkg-dev patchelf abigail-tools man-db zsh fish)
ci_packages=(clang libc++-dev libc++abi-dev)

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
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Gives torch a virtual environment that is kept between runs, where tests/python/training/python looks for it.  Debian's is too
# old.  Without a network, or without room, its tests are skipped.
install_torch() {
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/attnkit/torch wanted=tests/python/training/requirements.txt from
  [ -n "${ATTNKIT_TORCH_PYTHON:-}" ] && return 0
  cmp -s "$wanted" "$venv/requirements.txt" && return 0
  rm -rf "$venv" && mkdir -p "$venv"
  if [ "$(df --output=avail -k "$venv" | tail -1)" -gt 8000000 ] && python3 -m venv "$venv"; then
    # The build for CPUs alone is 0.2 GB to download; PyPI's brings the libraries of CUDA, 5.4 GB when unpacked.
    for from in "--index-url https://download.pytorch.org/whl/cpu" ""; do
      echo "downloading $(cat "$wanted") into $venv, ${from:-from PyPI, 2.5 GB}"
      # shellcheck disable=SC2086
      "$venv/bin/pip" install -q --no-cache-dir --disable-pip-version-check --retries 1 --timeout 15 $from -r "$wanted" 2>"$venv/log" &&
        cp "$wanted" "$venv/requirements.txt" && return 0
    done
    tail -1 "$venv/log"
  fi
  rm -rf "$venv"
  echo "torch could not be installed: the tests of attnkit.torch are skipped"
}

# Gives the tests of the Python package numpy, mypy, onnx, onnxruntime and optuna, where tests/python/tools/python looks for them.
install_python_tools() {
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/attnkit/python-tools wanted=tests/python/tools/requirements.txt
  [ -n "${ATTNKIT_TOOLS_PYTHON:-}" ] && return 0
  cmp -s "$wanted" "$venv/requirements.txt" && return 0
  rm -rf "$venv" && mkdir -p "$venv"
  if python3 -m venv "$venv" &&
    "$venv/bin/pip" install -q --no-cache-dir --disable-pip-version-check --retries 1 --timeout 15 -r "$wanted" 2>"$venv/log"; then
    cp "$wanted" "$venv/requirements.txt" && return 0
  fi
  rm -rf "$venv"
  echo "numpy, mypy, onnxruntime and optuna could not be installed: tests of the Python package with them are skipped"
}

# configure <folder> [cmake options]: the same options for the quickstart and the tests, so that they can share a tree.
configure() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DATTNKIT_WERROR=OFF)
  [ "${CI:-}" = true ] && options+=(-DATTNKIT_WERROR=ON)
  # Compiling up to eight files as one is faster when all are compiled; files that are edited are better compiled alone:
  # -DCMAKE_UNITY_BUILD=OFF.
  [ -f "$1/CMakeCache.txt" ] || options+=(-G Ninja -DCMAKE_UNITY_BUILD=ON)
  command -v ccache >/dev/null && options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # g++ collects garbage once it holds 400 MB and not 128: most files never do, and a compiler takes 0.1 GB more.
  local flags=${CXXFLAGS:-}
  # shellcheck disable=SC2086
  [[ $(${CXX:-c++} --version) != *"Free Software"* ]] || flags+=" --param=ggc-min-heapsize=400000"
  CXXFLAGS=$flags cmake -B "$1" "${options[@]}" "${@:2}"
}
