#!/usr/bin/env bash
# The one command for a GPU machine: configures, builds, runs the GPU tests and a short training of each precision,
# and prints a table. Usage: scripts/gpu-check.sh [quick]   (quick: tests only)
# Headers of cudnn-frontend are taken from the folder OCTET_CUDNN_FRONTEND where that is set.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=$(($(nproc) > 2 ? $(nproc) - 2 : $(nproc)))
frontend=${OCTET_CUDNN_FRONTEND:-}

started=$SECONDS
cmake --preset release -DOCTET_CUDA=ON ${frontend:+-DOCTET_CUDNN_FRONTEND=$frontend} > build-configure.log 2>&1 ||
  { cat build-configure.log; exit 1; }
grep -E "CUDA backend|cuDNN" build-configure.log
rm -f build-configure.log
cmake --build --preset release -j "$jobs" > build/build.log 2>&1 || { grep -E "error|FAILED" -A5 build/build.log | head -80; exit 1; }
echo "build: $((SECONDS - started)) s"

ctest --preset release -L gpu > build/gpu-tests.log 2>&1
tests=$?
grep -E "Failure|error:|Expected|actual|FAILED|tests passed|\(Failed\)" build/gpu-tests.log | head -60
[[ ${1:-} == quick ]] && exit $tests

runs=$(mktemp -d)
for precision in "--mixed_precision bf16" "--fp8_recipe delayed" "--fp8_recipe current" "--fp8_recipe block"; do
  for model in llama-tiny gpt2-tiny; do
    name=$(echo "$model $precision" | tr -cd 'a-z0-9')
    if build/release/octet train --device cuda --model_preset $model $precision --max_steps 200 --progress plain \
        --logging_steps 100 --sample_steps 0 --output_dir "$runs" --run_name "$name" > "$runs/$name.log" 2>&1; then
      printf '%-14s %-24s %s\n' "$model" "$precision" "$(grep -E '^step 200' "$runs/$name.log")"
    else
      printf '%-14s %-24s FAILED: %s\n' "$model" "$precision" "$(grep -E 'error' "$runs/$name.log" | head -3)"
      tests=1
    fi
  done
done
rm -rf "$runs"
exit $tests
