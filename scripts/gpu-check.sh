#!/usr/bin/env bash
# The one command for a GPU machine. It configures, builds, and then runs one or more of these tasks:
#   quick      the GPU tests
#   full       the GPU tests and the benchmark table (the default)
#   speeds     everything that scripts/gpu_speed_table.py measures
#   sanitize   compute-sanitizer, memcheck and racecheck, on the op tests (SANITIZE_SECONDS: time limit per part)
#   compare    100 training steps against Transformers (scripts/compare_transformers.py; needs torch and transformers)
#   ranks      two NCCL ranks on the one GPU, compared with each other and with one rank (scripts/check_gpu_ranks.py)
# The exit code is 1 if anything failed or a required speed was missed. Logs: build/gpu-check/.
# OCTET_CUDNN_FRONTEND may name the folder with the headers of cudnn-frontend. Without a GPU, use `make test`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:/usr/local/cuda/bin
logs=build/gpu-check
octet=build/release/octet
failed=0

build() {
  local started=$SECONDS frontend=${OCTET_CUDNN_FRONTEND:-} jobs
  jobs=$(($(nproc) > 3 ? $(nproc) - 2 : $(nproc)))
  cmake --preset release -DOCTET_CUDA=ON ${frontend:+-DOCTET_CUDNN_FRONTEND=$frontend} > $logs/configure.log 2>&1 ||
    { cat $logs/configure.log; exit 1; }
  grep -E "CUDA backend|cuDNN" $logs/configure.log
  grep -q "cuDNN attention: yes" $logs/configure.log ||
    echo "WARNING: built without cuDNN. Attention uses octet's own kernels; the required speeds below were measured with cuDNN" \
      "(pip install nvidia-cudnn-frontend==1.14.1, or set OCTET_CUDNN_FRONTEND)"
  cmake --build --preset release -j "$jobs" --target octet cuda_tests benches > $logs/build.log 2>&1 ||
    { grep -E "error|FAILED" -A5 $logs/build.log | head -80; exit 1; }
  echo "build: $((SECONDS - started)) s with $jobs jobs"
}

gpu_tests() {
  ctest --preset release -L gpu -j 6 -V --no-tests=error > $logs/tests.log 2>&1 || failed=1
  grep -E "Failure|error:|Expected|actual|FAILED|tests passed|\(Failed\)|Total Test" $logs/tests.log | head -60
  # ctest counts a part without a usable GPU as skipped. Here it proves nothing.
  grep -q "\*\*\*Skipped" $logs/tests.log && { echo "some parts found no usable GPU and were skipped"; failed=1; }
  echo "slowest tests:"
  sed -nE 's/.*\[       OK \] (\S+).* \(([0-9]+) ms\)$/\2 ms  \1/p' $logs/tests.log | sort -rn | head -5
}

# One process per tool and group of tests, eight in parallel, with a few of the FP8 rules. Racecheck skips the libraries'
# matrix products and cuDNN's attention, because it would check their kernels, not octet's.
sanitize() {
  command -v compute-sanitizer > /dev/null || { echo "sanitize: compute-sanitizer was not found in PATH"; failed=1; return; }
  local jobs=() group job name filter tool exclude attention pid code log passed verdict limit=${SANITIZE_SECONDS:-300}
  for group in \
    'ops         Table/CudaOps.AgreeWithCpu/*-*/fused*:*/quantize*:*/adamw*:*/gemm_fp8*' \
    'fp8         Table/CudaOps.AgreeWithCpu/quantize*:Table/CudaOps.AgreeWithCpu/gemm_fp8*' \
    'fused       Table/CudaOps.AgreeWithCpu/fused*' \
    'optimizer   Table/CudaOps.AgreeWithCpu/adamw*' \
    'odd         */CudaFusedSizes.*/37x52' \
    'vectors     */CudaFusedSizes.Activations/264x72' \
    'norms       */CudaFusedNorms.*/37x52' \
    'strips      */CudaFusedNorms.*/75x1600' \
    'rope        CudaFused.Rope' \
    'loss        CudaLoss.*' \
    'quantize    CudaQuantize.*' \
    'adamw       CudaAdamW.*' \
    'adapters    CudaAdapterOps.*' \
    'flash       CudaAttention.Flash*:CudaAttention.NothingLeaksAcrossBorders' \
    'packed      CudnnPackedCases.MatchCpu/Random*' \
    'backend     CudaRandom.*:CudaQueues.*:CudaBackendTest.ClearsMany*:CudaBackendTest.EveryMicroBatch*'; do
    read -r name filter <<< "$group"
    for tool in memcheck racecheck; do
      [[ $tool-$name == racecheck-packed ]] && continue  # octet's kernels there share no memory
      exclude=''
      [[ $tool == racecheck && $filter == *-* ]] && exclude=':*gemm*'
      [[ $tool == racecheck && $filter != *-* ]] && exclude='-*gemm*'
      while (($(jobs -rp | wc -l) >= 8)); do sleep 0.2; done
      [[ $tool == racecheck ]] && attention=flash || attention=
      OCTET_ATTENTION=$attention OCTET_TEST_FEW_RULES=1 OMP_NUM_THREADS=1 timeout "$limit" compute-sanitizer --tool "$tool" --error-exitcode 99 \
        build/release/tests/cuda_tests --gtest_filter="$filter$exclude" > "$logs/$tool-$name.log" 2>&1 &
      jobs+=("$! $tool $name")
    done
  done
  for job in "${jobs[@]}"; do
    read -r pid tool name <<< "$job"
    verdict=clean log=$logs/$tool-$name.log code=0
    wait "$pid" || code=$?
    # A group that ran no test proves nothing.
    passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log")
    case $code in
      0) grep -qE "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" "$log" || verdict="NO CLEAN SUMMARY"
         [[ ${passed:-0} -gt 0 ]] || verdict="NO TEST RAN" ;;
      124) verdict="NOT FINISHED after $limit s" ;;
      *) verdict="FAILED" ;;
    esac
    [[ $verdict == clean ]] || failed=1
    printf '%-10s %-12s %s, %s tests: %s\n' "$tool" "$name" "$verdict" "${passed:-0}" \
      "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | sed 's/^=* *//')"
    [[ $verdict == clean ]] || grep -E '^=+ +(Invalid|Error|Warning|Program|Race|Potential)|\[  FAILED|\[ RUN' "$log" | tail -8
  done
}

speeds() {
  python3 scripts/gpu_speed_table.py --octet $octet --logs $logs --cases "$@" || failed=1
}

compare() {
  python3 scripts/compare_transformers.py --device cuda --json $logs/compare.json 2> $logs/compare.log ||
    { tail -20 $logs/compare.log; failed=1; }
}

ranks() {
  python3 scripts/check_gpu_ranks.py $octet || failed=1
}

usage() { sed -n '2,10s/^# //p' scripts/gpu-check.sh; }
[[ $# -gt 0 ]] || set -- full
for task in "$@"; do
  case $task in
    quick | full | speeds | sanitize | compare | ranks) ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown task '$task', expected one of:" >&2; usage >&2; exit 2 ;;
  esac
done
command -v nvidia-smi > /dev/null || { echo "nvidia-smi was not found, so no NVIDIA driver is installed. Without a GPU, use make test" >&2; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader ||
  { echo "nvidia-smi finds no GPU. Without a GPU, use make test" >&2; exit 1; }
mkdir -p $logs
build
for task in "$@"; do
  case $task in
    quick) gpu_tests ;;
    full) gpu_tests; speeds models ;;
    speeds) speeds models recipes heads runs ;;
    *) "$task" ;;
  esac
done
exit $failed
