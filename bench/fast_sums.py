#!/usr/bin/env python3
"""What fast sums of FP8 products lose, by the number of terms; a model of Hopper's tensor cores, not a measurement; needs numpy.

    bench/fast_sums.py [--sums 512]

A step of the tensor core adds 32 products to the sum. It aligns them to the largest of all, and cuts off what lies more than 13
bits below that one's first bit. This is repeated for every 32 terms. The two factors of a term are normal random numbers, one
rounded to 3 bits of mantissa (E4M3), the other to 2 (E5M2), with a given correlation. With a correlation all terms of a sum tend
to have one sign, as in the gradient of a weight that all tokens want to change in one direction.

The table has the error of the sums (root mean square, relative), and by how much they are too small.
"""
import argparse
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("this script needs numpy")

TERMS = [768, 4096, 8192, 16384, 28672, 65536]
CORRELATIONS = [0.0, 0.02, 0.1]
TERMS_OF_A_STEP, KEPT_BITS = 32, 13


def unit_of(largest):
    """The last bit that is kept next to `largest`."""
    return 2.0 ** (np.floor(np.log2(np.maximum(largest, 1e-30))) - KEPT_BITS)


def rounded(values, mantissa_bits):
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 1e-30))) - mantissa_bits)
    return np.rint(values / unit) * unit


def fast_sums(a, b):
    sums = np.zeros(len(a))
    for begin in range(0, a.shape[1], TERMS_OF_A_STEP):
        step = slice(begin, begin + TERMS_OF_A_STEP)
        terms = np.concatenate([a[:, step] * b[:, step], sums[:, None]], axis=1)
        unit = unit_of(np.abs(terms).max(axis=1))[:, None]
        sums = (np.trunc(terms / unit) * unit).sum(axis=1)
        unit = unit_of(np.abs(sums))
        sums = np.trunc(sums / unit) * unit
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=512, help="sums per row of the table")
    count = parser.parse_args().sums
    print("| terms | " + " | ".join(f"correlation {c:g}: error | too small by" for c in CORRELATIONS) + " |")
    print("| --- |" + " --- | --- |" * len(CORRELATIONS))
    for terms in TERMS:
        cells = []
        for correlation in CORRELATIONS:
            random = np.random.default_rng(terms)
            a = random.standard_normal((count, terms))
            b = correlation * a + np.sqrt(1 - correlation**2) * random.standard_normal((count, terms))
            a, b = rounded(a, 3), rounded(b, 2)
            exact, fast = (a * b).sum(axis=1), fast_sums(a, b)
            error = np.sqrt(((fast - exact) ** 2).mean() / (exact**2).mean())
            shrunk = 1 - (fast * exact).sum() / (exact**2).sum()
            cells += [f"{100 * error:.2f} %", f"{100 * shrunk:.2f} %"]
        print(f"| {terms:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
