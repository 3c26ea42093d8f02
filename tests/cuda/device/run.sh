#!/bin/bash
# Runs what this folder holds on the GPU of this machine: tests, compute-sanitizer where it is installed, benchmarks.  Installs
# nothing; writes tables into results/ or the folder that it is given.
#
#   ./run.sh [--quick] [RESULTS]    --quick: some minutes: without the slowest tests and compute-sanitizer, and with a
#                                   choice of benchmarks; exits 77 where there is no device, 1 when a test fails
set -u
cd "$(dirname "$0")" || exit 1
quick=
[ "${1:-}" = --quick ] && quick=--quick && shift
out=${1:-results}
mkdir -p "$out/logs" || exit 1
[ -d lib ] && export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

bin/attnkit_gpu_bench --device >"$out/device.txt" 2>&1
case $? in
  0) cat "$out/device.txt" ;;
  77) cat "$out/device.txt"; echo "no test and no benchmark was run"; exit 77 ;;
  *) cat "$out/device.txt"; echo "the programs do not start here: they need the glibc that they were built with, or a newer one"; exit 1 ;;
esac

tests=$out/tests.md
printf '| test | result | seconds |\n|---|---|---|\n' >"$tests"
check() {  # check NAME COMMAND...; one more at a time than the machine has processors waits
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  (
    begin=$SECONDS result=passed
    timeout "${ATTNKIT_TEST_SECONDS:-900}" "${@:2}" >"$out/logs/$1.txt" 2>&1 || result="failed with $?, see logs/$1.txt"
    printf '| %s | %s | %d |\n' "$1" "$result" $((SECONDS - begin)) | tee -a "$tests"
  ) &
}

# without FILE...: the tests that these files name, and with --quick the slowest, as a filter
without() {
  local filter=- file
  for file; do [ ! -f "$file" ] || filter+=$(cat "$file"):; done
  echo "$filter"
}

check variants bin/attnkit_gpu_variants_test --gtest_brief=1
check halves bin/attnkit_gpu_halves_test --gtest_brief=1
check library bin/attnkit_gpu_library_test --gtest_brief=1  # with the machine's cuBLASLt
for file in device/*.so; do
  name=$(basename "$file" .so)
  check "$name" env ATTNKIT_TEST_PLUGINS="$PWD/device" "bin/${name}_test" --gtest_brief=1 \
    "--gtest_filter=$(without "device/$name.without" ${quick:+"device/$name.slow"})"
  check "$name-conformance" env ATTNKIT_CONFORMANCE_PLUGINS="$PWD/$file" bin/attnkit_conformance --gtest_brief=1 \
    "--gtest_filter=-file_*:process_*${quick:+:whole_repeats_often*}"
done
wait
check models env ATTNKIT_DEVICE_LISTS=50 bin/attnkit_gpu_model_test --gtest_brief=1  # alone: it takes all memory
wait

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$quick" ]; then
  echo "compute-sanitizer's four tools were left out" | tee -a "$tests"
elif [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck initcheck synccheck; do
    for some in 'variants:*StreamsInPiecesOfAnySize*:*TakesWideHeads*' 'halves:*WholeSequences*:*GradientsEqualTheCpus*' 'library:*'; do
      check "$tool-${some%%:*}" "$sanitizer" --tool $tool --error-exitcode 1 "bin/attnkit_gpu_${some%%:*}_test" --gtest_brief=1 \
        "--gtest_filter=${some#*:}"
    done
  done
  wait
else
  echo "there is no compute-sanitizer: its four tools were left out" | tee -a "$tests"
fi

failed=0
grep -q '| failed' "$tests" && failed=1
bin/attnkit_gpu_bench $quick >"$out/bench.md" 2>"$out/logs/bench.txt" || { failed=1; tail -3 "$out/logs/bench.txt"; }
echo "tables: $out/tests.md, $out/bench.md"
exit $failed
