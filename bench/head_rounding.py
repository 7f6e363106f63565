#!/usr/bin/env python3
"""What FP8 products of the head cost a model that has hardly anything but a head; a simulation in numpy, not a measurement of octet.

    bench/head_rounding.py SHARD [--heads exact backward ...] [--seeds 1 2] [--steps 300]

The model predicts a token from the two before it: their embeddings are added and normalised, and the head gives the logits. SHARD
is a file of tokens in 16 bits that octet prepare has written (train_00000.octet). Of its tokens the 4,095 most frequent ones are
kept, and all others count as one. AdamW, 8,192 tokens a step. Runs of one seed see the same tokens in the same order, and such a
small model is not chaotic: two runs with different rounding errors end almost alike. So small costs can be seen.

As in octet, inputs and weights of the head are E4M3, gradients of logits are E5M2, what rounding adds to a row of gradients is
taken back at its target, inputs are centred for the gradient of the weight, and the mean of the input's gradient is kept. Sums are
exact. "sums alone" is backward without the last two, "unkept" without any of the three.

The first table has the loss on tokens that were held out. The second one compares the gradients that the head's products have at
the end of the first run with exact ones: relative error (2-norm) and 1 - cosine.
"""
import argparse
import sys
import time

try:
    import numpy as np
except ImportError:
    sys.exit("this script needs numpy")

VOCABULARY, WIDTH, BATCH, HELD_OUT = 4096, 64, 8192, 40000
CORRECTIONS = ("sums", "centred", "mean")
HEADS = {  # products in FP8, and what is corrected
    "exact": (),
    "forward": ("forward",),
    "dgrad": ("dgrad", *CORRECTIONS),
    "wgrad": ("wgrad", *CORRECTIONS),
    "backward": ("dgrad", "wgrad", *CORRECTIONS),
    "all": ("forward", "dgrad", "wgrad", *CORRECTIONS),
    "sums alone": ("dgrad", "wgrad", "sums"),
    "unkept": ("dgrad", "wgrad"),
}
SHARD_ENDS = 64  # bytes of header and trailer, see docs/formats.md
MOST_TOKENS = 4_000_000


def tokens_of(path):
    with open(path, "rb") as file:
        header = file.read(SHARD_ENDS)
        if header[:8] != b"OCTETSHD" or header[12] != 2:
            raise SystemExit(f"{path} is not a shard of octet with 16-bit tokens")
        file.seek(-SHARD_ENDS, 2)
        count = int.from_bytes(file.read(8), "little")
        if count < 2 * HELD_OUT:
            raise SystemExit(f"{path} has {count} tokens, expected at least {2 * HELD_OUT}")
        file.seek(SHARD_ENDS)
        ids = np.frombuffer(file.read(2 * min(count, MOST_TOKENS)), dtype="<u2")
    kinds, occurrences = np.unique(ids, return_counts=True)
    place = np.full(1 << 16, VOCABULARY - 1)
    frequent = kinds[np.argsort(-occurrences, kind="stable")][:VOCABULARY - 1]
    place[frequent] = np.arange(len(frequent))
    return place[ids]


def rounded(values, mantissa_bits, largest, smallest_normal, amax):
    """To the nearest number of a format, with a scale that takes amax to the format's largest number."""
    scale = np.float32(largest / amax)
    scaled = values * scale
    dropped = 23 - mantissa_bits
    bits = scaled.view(np.uint32)
    bits = bits + np.uint32((1 << (dropped - 1)) - 1) + ((bits >> np.uint32(dropped)) & np.uint32(1))
    near = (bits & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)).view(np.float32)
    unit = np.float32(smallest_normal / (1 << mantissa_bits))
    small = np.abs(scaled) < smallest_normal
    near[small] = np.rint(scaled[small] / unit) * unit
    return near / scale


def e4m3(values):
    return rounded(values, 3, 448.0, 2.0**-6, np.abs(values).max())


def e5m2(values):
    return rounded(values, 2, 57344.0, 2.0**-14, 1.0)  # a gradient of a logit is at most 1


def loss_and_gradients(x, weight, targets, products):
    """The mean loss, and the gradients of the head's input and weight by the sum of the losses."""
    rows = np.arange(len(x))
    x8, weight8 = (e4m3(x), e4m3(weight)) if products else (x, weight)
    logits = x8 @ weight8.T if "forward" in products else x @ weight.T
    logits -= logits.max(axis=1, keepdims=True)
    gradient = np.exp(logits)
    total = gradient.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) - logits[rows, targets]).mean()
    gradient /= total
    gradient[rows, targets] -= 1
    gradient8, missing = gradient, np.zeros(len(x), np.float32)
    if "dgrad" in products or "wgrad" in products:
        gradient8 = e5m2(gradient)
        if "sums" in products:
            missing = (gradient.sum(axis=1, dtype=np.float64) - gradient8.sum(axis=1, dtype=np.float64)).astype(np.float32)
    if "dgrad" in products:
        dx = gradient8 @ weight8 + missing[:, None] * weight[targets]
        if "mean" in products:
            dx += (gradient.sum(axis=0) @ weight - dx.sum(axis=0)) / np.float32(len(x))
    else:
        dx = gradient @ weight
    if "wgrad" in products:
        common = x.mean(axis=0) if "centred" in products else np.zeros_like(x[0])
        dweight = gradient8.T @ e4m3(x - common) + np.outer(gradient.sum(axis=0), common)
        np.add.at(dweight, targets, missing[:, None] * (x - common))
    else:
        dweight = gradient.T @ x
    return loss, dx, dweight


class Model:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.tables = [(0.02 * self.random.standard_normal((VOCABULARY, WIDTH))).astype(np.float32) for _ in range(3)]
        self.moments = [[np.zeros_like(table), np.zeros_like(table)] for table in self.tables]

    def input(self, last, before):
        added = self.tables[0][last] + self.tables[1][before]
        inverse = 1 / np.sqrt((added * added).mean(axis=1, keepdims=True) + 1e-5)
        return added * inverse, inverse

    def step(self, tokens, products, number, steps):
        place = self.random.integers(2, len(tokens), BATCH)
        last, before = tokens[place - 1], tokens[place - 2]
        x, inverse = self.input(last, before)
        _, dx, dhead = loss_and_gradients(x, self.tables[2], tokens[place], products)
        dadded = (dx - x * (dx * x).mean(axis=1, keepdims=True)) * inverse
        dtables = [np.zeros_like(self.tables[0]), np.zeros_like(self.tables[1]), dhead]
        np.add.at(dtables[0], last, dadded)
        np.add.at(dtables[1], before, dadded)
        rate = 5e-3 * min(1, number / 30) * 0.5 * (1 + np.cos(np.pi * (number - 1) / steps))
        for table, (first, second), gradient in zip(self.tables, self.moments, dtables):
            gradient = gradient / BATCH
            first += 0.1 * (gradient - first)
            second += 0.05 * (gradient * gradient - second)
            table -= rate / (1 - 0.9**number) * first / (np.sqrt(second / (1 - 0.95**number)) + 1e-8)

    def loss(self, tokens):
        places = [np.arange(begin, min(begin + BATCH, len(tokens))) for begin in range(2, len(tokens), BATCH)]
        losses = [loss_and_gradients(self.input(tokens[p - 1], tokens[p - 2])[0], self.tables[2], tokens[p], ())[0] * len(p) for p in places]
        return sum(losses) / (len(tokens) - 2)


def compare(name, value, exact):
    norm = np.linalg.norm(exact.astype(np.float64))
    error = np.linalg.norm(value.astype(np.float64) - exact) / norm
    cosine = np.vdot(value.astype(np.float64), exact) / norm / np.linalg.norm(value.astype(np.float64))
    return f"| {name} | {100 * error:.2f} % | {100 * (1 - cosine):.3f} % |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    tokens = tokens_of(args.shard)
    training, held_out = tokens[:-HELD_OUT], tokens[-HELD_OUT:]
    print("| head | seed | loss | difference to the first | seconds |\n| --- | --- | --- | --- | --- |")
    trained = None  # the model of the first run
    for seed in args.seeds:
        first = None
        for head in args.heads:
            begin = time.monotonic()
            model = Model(seed)
            for number in range(1, args.steps + 1):
                model.step(training, HEADS[head], number, args.steps)
            loss = model.loss(held_out)
            trained = trained or model
            first = first or loss
            print(f"| {head} | {seed} | {loss:.5f} | {100 * (loss / first - 1):+.3f} % | {time.monotonic() - begin:.0f} |", flush=True)
    place = np.arange(2, 2 + BATCH)
    x, _ = trained.input(held_out[place - 1], held_out[place - 2])
    _, exact_dx, exact_dweight = loss_and_gradients(x, trained.tables[2], held_out[place], ())
    print(f"\nAfter {args.heads[0]}, seed {args.seeds[0]}:\n\n| gradient | error | 1 - cosine |\n| --- | --- | --- |")
    for head in ("dgrad", "wgrad", "forward", "all", "sums alone"):
        _, dx, dweight = loss_and_gradients(x, trained.tables[2], held_out[place], HEADS[head])
        if head != "wgrad":
            print(compare(f"of the input, {head}", dx, exact_dx))
            print(compare(f"of the input, mean of all rows, {head}", dx.mean(axis=0), exact_dx.mean(axis=0)))
        if head != "dgrad":
            print(compare(f"of the weight, {head}", dweight, exact_dweight))


if __name__ == "__main__":
    main()
