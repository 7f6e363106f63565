#!/usr/bin/env bash
# Builds octet with a sanitizer and runs the CPU tests under it, except those that .ci/nightly alone runs:
#   scripts/check_sanitizers.sh asan-ubsan   # address and undefined behaviour
#   scripts/check_sanitizers.sh tsan         # threads
# A whole test program is one process: the address sanitizer looks for leaks at the end of each process, which takes
# seconds. Tests that start many processes (apps, cli, dist, fuzz) run with ctest, and there leaks are not looked for.
# The exit code is 1 if anything failed. Logs: build/PRESET/logs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
usage() { sed -n '2,7s/^# //p' scripts/check_sanitizers.sh; }
[[ ${1:-} == -h || ${1:-} == --help ]] && { usage; exit 0; }
[[ ${1:-} == asan-ubsan || ${1:-} == tsan ]] || { usage >&2; exit 2; }
preset=$1
export logs=$PWD/build/$preset/logs programs=$PWD/build/$preset/tests
mkdir -p "$logs"
cmake --preset "$preset" -DOCTET_CUDA=OFF > "$logs/configure.log" 2>&1 || { cat "$logs/configure.log"; exit 1; }
cmake --build --preset "$preset" -j "$(nproc)" > "$logs/build.log" 2>&1 ||
  { grep -E "error|FAILED" -A5 "$logs/build.log" | head -40; exit 1; }

run_program() {
  local name=$1 code=0 log=$logs/$1.log passed
  (cd "$programs" && "./$name") > "$log" 2>&1 || code=$?
  passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log")
  printf '%-18s exit code %d, %s tests passed\n' "$name" "$code" "${passed:-0}"
  ((code == 0 && ${passed:-0} > 0)) || { grep -E "runtime error|ERROR: |WARNING: |SUMMARY: |\[  FAILED" "$log" | head -20; return 1; }
}
export -f run_program

failed=0
[[ -n $(find "$programs" -maxdepth 1 -name '*_tests') ]] || { echo "no test program was built"; exit 1; }
find "$programs" -maxdepth 1 -name '*_tests' -printf '%f\n' | grep -vE '^(apps|cli|dist)_tests$' | sort |
  xargs -P "$(nproc)" -I{} bash -c 'run_program {}' || failed=1
ASAN_OPTIONS=detect_leaks=0 ctest --preset "$preset" --no-tests=error -j "$(nproc)" -LE 'gpu|nightly' -R '^(apps|cli|dist|fuzz)\.' --timeout 3000 \
  > "$logs/ctest.log" 2>&1 || failed=1
grep -E "tests passed|\(Failed\)|\(Timeout\)|Exception|\[  FAILED" "$logs/ctest.log"
exit $failed
