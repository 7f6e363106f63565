#!/usr/bin/env python3
"""Times single matrix products of small models on one core, in octet and in PyTorch, and prints GFLOP/s of both: the best of
several rounds, in which they take turns, each on the core that is the fastest at that moment.

    cmake --build --preset release --target product_bench
    bench/cpu_products.py [--bench build/release/product_bench] [--python python3] [--rounds 3]

--python names an interpreter that has torch; without one only octet's figures are printed.
"""
import argparse
import json
import subprocess

from cpu_vs_torch import fastest_cores, run

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
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    has_torch = subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode == 0
    ours, theirs = [], []
    for _ in range(args.rounds):
        measured = json.loads(run([args.bench], fastest_cores(args.bench, 1)))
        products = measured["products"]
        ours.append([case["gflops"] for case in products])
        if has_torch:
            # Some of PyTorch's products take more threads than they are told; here they have one core.
            output = run([args.python, "-c", TORCH], fastest_cores(args.bench, 1), input=json.dumps(products))
            theirs.append([float(line) for line in output.split()])
    print(f"| product | m x n x k | octet GFLOP/s | PyTorch GFLOP/s | ratio |  (one core, {measured['instructions']})")
    print("| --- | --- | --- | --- | --- |")
    for i, case in enumerate(products):
        best = max(speeds[i] for speeds in ours)
        other = max((speeds[i] for speeds in theirs), default=None)
        compared = f"{other:.1f} | {best / other:.2f}x" if other else "|"
        print(f"| {case['what']} | {case['m']} x {case['n']} x {case['k']} | {best:.1f} | {compared} |")


if __name__ == "__main__":
    main()
