#!/usr/bin/env python3
"""What rounding of weights to BF16 costs AdamW on quadratic functions, by the kind of noise; needs numpy.

    bench/rounding_noise.py [--weights 40000] [--steps 500]

Every weight w has the loss curvature / 2 * (w - goal)^2 and noisy gradients. The table has the mean square distance from the
goals at the end, compared with fp32 weights: independent noise in every step, noise that moves on by the golden ratio (as
src/ops/stochastic.h has it), four more bits (compact), and rounding to the nearest.
"""
import argparse
import math
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("this script needs numpy")

CASES = [(0.02, 1.0, 0.03), (0.02, 1.0, 0.1), (0.1, 1.0, 0.03), (0.1, 1.0, 0.1)]  # spread of goals, curvature, noise of gradients


def rounded(weights, noise, kept_bits):
    mask = np.uint32((0xFFFFFFFF << (32 - kept_bits)) & 0xFFFFFFFF)
    return ((weights.view(np.uint32) + noise.astype(np.uint32)) & mask).view(np.float32)


def train(kind, goals, curvature, noise, count, steps):
    random, rounding = np.random.default_rng(3), np.random.default_rng(7)
    start = np.random.default_rng(99).integers(0, 1 << 16, count)
    weights = (0.02 * np.random.default_rng(2).standard_normal(count)).astype(np.float32)
    m, v = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for step in range(1, steps + 1):
        gradient = (curvature * (weights - goals) + noise * random.standard_normal(count)).astype(np.float32)
        warm = 60
        rate = 1e-3 * (step / warm if step < warm else 0.55 + 0.45 * math.cos(math.pi * (step - warm) / (steps - warm)))
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient * gradient
        update = rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
        weights = (weights - update).astype(np.float32)
        if kind == "independent":
            weights = rounded(weights, rounding.integers(0, 1 << 16, count), 16)
        elif kind == "golden":
            weights = rounded(weights, (start + step * 40503) % (1 << 16), 16)
        elif kind == "compact":
            weights = rounded(weights, rounding.integers(0, 1 << 12, count), 20)
        elif kind == "nearest":
            weights = rounded(weights, np.full(count, 1 << 15), 16)
    return float(np.mean((weights - goals).astype(np.float64) ** 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=40000)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    kinds = ["independent", "golden", "compact", "nearest"]
    print(f"| goals | curvature | gradient noise | {' | '.join(kinds)} |")
    print("| --- " * (3 + len(kinds)) + "|")
    for spread, curvature, noise in CASES:
        goals = (spread * np.random.default_rng(1).standard_normal(args.weights)).astype(np.float32)
        exact = train("exact", goals, curvature, noise, args.weights, args.steps)
        costs = [100 * (train(kind, goals, curvature, noise, args.weights, args.steps) / exact - 1) for kind in kinds]
        print(f"| {spread} | {curvature} | {noise} | {' | '.join(f'{cost:+.1f} %' for cost in costs)} |", flush=True)


if __name__ == "__main__":
    main()
