#!/usr/bin/env python3
"""Times single matrix products of small models on one core, in octet and in PyTorch, and prints GFLOP/s of both.

    cmake --build --preset release --target product_bench
    bench/cpu_products.py [--bench build/release/product_bench] [--python python3]

--python names an interpreter that has torch; without one only octet's figures are printed.
"""
import argparse
import json
import os
import subprocess

TORCH = """
import json, sys, time, torch
torch.set_num_threads(1)
for case in json.load(sys.stdin):
    m, n, k = case["m"], case["n"], case["k"]
    a = torch.randn(k, m).t() if case["transpose_a"] else torch.randn(m, k)
    b = torch.randn(n, k).t() if case["transpose_b"] else torch.randn(k, n)
    c, best, flops = torch.empty(m, n), 0, 2 * m * n * k
    calls = -(-3 * 10**9 // flops)
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b, out=c)
        best = max(best, 1e-9 * flops * calls / (time.perf_counter() - start))
    print(best)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/product_bench")
    parser.add_argument("--python", default="python3")
    args = parser.parse_args()
    # Some of PyTorch's products take more threads than they are told.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    measured = json.loads(subprocess.run([args.bench], check=True, capture_output=True, text=True).stdout)
    products = measured["products"]
    has_torch = subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode == 0
    theirs = [None] * len(products)
    if has_torch:
        output = subprocess.run([args.python, "-c", TORCH], input=json.dumps(products), check=True, capture_output=True, text=True)
        theirs = [float(line) for line in output.stdout.split()]
    print(f"| product | m x n x k | octet GFLOP/s | PyTorch GFLOP/s | ratio |  (one core, {measured['instructions']})")
    print("| --- | --- | --- | --- | --- |")
    for case, other in zip(products, theirs):
        compared = f"{other:.1f} | {case['gflops'] / other:.2f}x" if other else "|"
        print(f"| {case['what']} | {case['m']} x {case['n']} x {case['k']} | {case['gflops']:.1f} | {compared} |")


if __name__ == "__main__":
    main()
