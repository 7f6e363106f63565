#!/usr/bin/env python3
"""Measures training steps on this machine's GPU and compares them with the figures that they must reach.

    scripts/gpu_speed_table.py [--cases NAME ...] [--rounds N] [--octet build/release/octet] [--logs FOLDER] [--json FILE]
                               [--set KEY=VALUE ...]

--cases takes names of cases or of the groups models (the default), recipes, heads and runs. 'models' are whole steps of the
presets, 'recipes' the block recipe and long sequences. 'heads' says how much of the gain of a head in FP8 (fp8_head all) the
default head has. 'runs' are real training runs: what FP8 statistics cost, and what it saves that the head skips tokens without a
target. The result is one table. The exit code is 1 if a figure was missed.

The cases but for 'runs' are measured in several rounds. Their figures are medians, and the lowest and highest one is shown.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

# With the default head: logits in FP8 are faster still, but may cost loss (bench/RESULTS.md).
FAST_SUMS = ["--fp8_fast_accum", "all"]
SMALL_STATES = ["--optimizer_state", "fp8", "--master_weights", "compact"]
SMALLEST_STATES = ["--optimizer_state", "fp8", "--master_weights", "stochastic"]


class Failed(Exception):
    pass


def run_octet(args, name, *words):
    log = pathlib.Path(args.logs, name.replace(" ", "-") + ".log")
    with open(log, "w") as output:
        settings = [word for setting in args.set for word in ("--" + setting).split("=", 1)]
        code = subprocess.run([args.octet, *words, *settings], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if code != 0:
        errors = [line for line in log.read_text().splitlines() if line.startswith("error")]
        raise Failed(f"exit code {code}, see {log}{': ' + errors[-1] if errors else ''}")


def bench(args, name, preset, rows, length, variants, flags):
    """Tokens per second of `octet bench`, one figure per variant."""
    figures = pathlib.Path(args.logs, name.replace(" ", "-") + ".json")
    figures.unlink(missing_ok=True)
    run_octet(args, name, "bench", "--device", args.device, "--model_preset", preset, "--per_device_train_batch_size", str(rows),
              "--max_seq_length", str(length), "--gradient_checkpointing", "none", "--variants", ",".join(variants), "--bench_steps", "10",
              "--json", str(figures), *flags)
    return [run["tokens_per_second"] for run in json.loads(figures.read_text())]


def scatter(figures):
    return f"{min(figures):,.0f} to {max(figures):,.0f}"


class Steps:
    """`octet bench` of two variants. Required: tokens per second of the second one, or its ratio to the first one."""

    def __init__(self, preset, rows, length=1024, fp8="delayed", base="bf16", must=0, aim=0, must_ratio=0, peers=(0, 0), must_peer=0,
                 flags=()):
        self.preset, self.rows, self.length, self.variants, self.flags = preset, rows, length, [base, fp8], flags
        self.must, self.aim, self.must_ratio, self.peers, self.must_peer = must, aim, must_ratio, peers, must_peer

    def measure(self, args, name):
        variants = [variant for variant in self.variants if variant]
        speeds = {variant: [] for variant in variants}
        for number in range(args.rounds):
            for variant, speed in zip(variants, bench(args, f"{name} {number}", self.preset, self.rows, self.length, variants, self.flags)):
                speeds[variant].append(speed)
        base, fp8 = (statistics.median(speeds[variant]) if variant else None for variant in self.variants)
        ratio = fp8 / base if base else None
        wanted = []
        if self.must:
            wanted.append((fp8 >= self.must, f"{self.must:,}"))
        if self.must_peer:
            wanted.append((fp8 >= self.must_peer * self.peers[0], f"{self.must_peer:.2f}x PyTorch"))
        if self.must_ratio:
            wanted.append((ratio >= self.must_ratio, f"{self.must_ratio:.2f}x"))
        peer, peer_bf16 = self.peers
        if peer_bf16 and base:
            wanted.append((base >= peer_bf16, f"BF16 {peer_bf16:,}"))
        what = f"{self.preset}, {self.rows} x {self.length}, {self.variants[1]} ({scatter(speeds[self.variants[1]])})"
        return {"what": what, "base": base, "measured": fp8, "ratio": ratio, "must": wanted, "aim": self.aim, "peer": peer,
                "speeds": speeds}


class Heads:
    """A head in BF16, the default head and a head in FP8, in turn. Required: the default's share of the gain in speed."""

    def __init__(self, preset, rows, flags=()):
        self.preset, self.rows, self.flags = preset, rows, flags

    def measure(self, args, name):
        speeds = {"none": [], "backward": [], "all": []}
        for number in range(args.rounds):
            for head, figures in speeds.items():
                figures += bench(args, f"{name} {head} {number}", self.preset, self.rows, args.length, ["delayed"],
                                 [*self.flags, "--fp8_head", head])
        none, backward, whole = (statistics.median(figures) for figures in speeds.values())
        gain = whole / none - 1
        # A small gain is lost in the scatter of the runs.
        share = (backward / none - 1) / gain if gain > 0.01 else 0.0
        of_gain = f"they have {share:.0%} of the gain of a head in FP8" if gain > 0.01 else "a head in FP8 gains too little to tell"
        return {"what": f"{self.preset}, {self.rows} x {args.length}, head in BF16 ({scatter(speeds['none'])}) and its gradients in FP8 "
                        f"({scatter(speeds['backward'])}); {of_gain} ({scatter(speeds['all'])})",
                "base": none, "measured": backward, "ratio": backward / none,
                "must": [(share >= 0.5, "half of the gain")], "speeds": speeds}


def train(args, name, folder, *words):
    """Tokens per second of a run between its sixth and its last step, and what its log says about packing."""
    name = name.replace(" ", "-")
    run_octet(args, name, "train", "--device", args.device, "--save_strategy", "no", "--use_tensorboard", "false", "--eval_steps", "0",
              "--eval_split", "0", "--logging_steps", "1", "--progress", "plain", "--output_dir", folder, "--run_name", name, *words)
    records = [json.loads(line) for line in pathlib.Path(folder, name, "metrics.jsonl").read_text().splitlines()]
    # By the clock: what a step leaves behind on the GPU, the next one pays for.
    first, last = [record for record in records if record["step"] >= 6][0], records[-1]
    packing = re.search(r"packing efficiency ([0-9.]+) %; loss is taken on ([0-9.]+) %", pathlib.Path(args.logs, name + ".log").read_text())
    percent = [float(figure) for figure in packing.groups()] if packing else None
    return (last["tokens"] - first["tokens"]) / (last["time"] - first["time"]), percent


class Statistics:
    """A run with FP8 statistics in every step against one without."""

    def __init__(self, preset, rows, must_ratio):
        self.preset, self.rows, self.must_ratio = preset, rows, must_ratio

    def measure(self, args, name):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            rng = random.Random(1)
            text.write_text(" ".join(str(rng.randrange(10**6)) for _ in range(10**6)))
            without, with_them = (
                train(args, f"{name} {steps}", folder, "--model_preset", self.preset, "--dataset", str(text), "--tokenizer", "bytes",
                      "--per_device_train_batch_size", str(self.rows), "--max_seq_length", str(args.length), "--max_steps", str(args.steps),
                      "--fp8_stats_steps", str(steps))[0] for steps in (0, 1))
        ratio = without / with_them
        return {"what": f"{self.preset}, {self.rows} x {args.length}, without and with FP8 statistics; ratio of times", "base": without,
                "measured": with_them, "ratio": ratio, "must": [(ratio <= self.must_ratio, f"at most {self.must_ratio:.2f}x")]}


class Targets:
    """A fine-tuning run on synthetic questions and answers with the loss on about `share` of all tokens, against the loss on all."""

    TEMPLATE = 140  # bytes that the template adds to a question

    def __init__(self, preset, rows, accumulation, share, must=0, must_ratio=0, flags=()):
        self.preset, self.rows, self.accumulation, self.share, self.flags = preset, rows, accumulation, share, flags
        self.must, self.must_ratio = must, must_ratio

    def measure(self, args, name):
        rng = random.Random(1)
        document = args.length // 2  # two fill a sequence
        answer = int(document * self.share)

        def text(length):
            return "".join(rng.choice("abcdefghij ") for _ in range(length))

        runs = []
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder, "questions.jsonl")
            with open(data, "w") as file:
                for _ in range(2 * (args.steps + 1) * self.rows * self.accumulation):
                    record = {"instruction": text(document - answer - self.TEMPLATE), "output": text(answer)}
                    file.write(json.dumps(record) + "\n")
            for train_on in ("all", "completion"):
                runs.append(train(args, f"{name} {train_on}", folder, "--model_preset", self.preset, "--dataset", str(data), "--tokenizer",
                                  "bytes", "--chat_template", "alpaca", "--train_on", train_on, "--per_device_train_batch_size",
                                  str(self.rows), "--gradient_accumulation_steps", str(self.accumulation), "--max_seq_length",
                                  str(args.length), "--max_steps", str(args.steps), "--fp8_stats_steps", "0", *self.flags))
        (base, of_all), (speed, of_completions) = runs
        if not of_all or not of_completions:
            raise Failed("a run's log does not say on how many tokens the loss is taken")
        packed, share = of_completions
        if abs(share - 100 * self.share) > 1:
            raise Failed(f"the loss is taken on {share} % of the tokens, expected {self.share:.0%}")
        wanted = [(speed >= self.must, f"{self.must:,}")] if self.must else []
        if self.must_ratio:
            wanted.append((speed / base >= self.must_ratio, f"{self.must_ratio:.2f}x"))
        return {"what": f"{self.preset}, {self.rows} x {args.length} x {self.accumulation}, {packed} % packed, loss on {of_all[1]} % and {share} %",
                "base": base, "measured": speed, "ratio": speed / base, "must": wanted}


# Peers: PyTorch with torch.compile on an H200 in its best precision, and in BF16.
GROUPS = {
    "models": {
        "gpt2": Steps("gpt2", 64, must=745000, aim=800000, peers=(483531, 483000), flags=FAST_SUMS),
        "1b": Steps("llama-3.2-1b", 12, must=105000, aim=113000, peers=(75228, 65200), flags=FAST_SUMS + SMALL_STATES),
        "3b": Steps("llama-3.2-3b", 12, must=45000, aim=47500, peers=(34100, 27200), flags=FAST_SUMS + SMALL_STATES),
        "8b": Steps("llama-3.1-8b", 8, must=20300, aim=21800, peers=(16200, 11600), must_peer=1.25, flags=FAST_SUMS + SMALL_STATES),
        "14b": Steps("qwen2.5-14b", 4, must=10300, aim=11000, peers=(6070, 4750), flags=FAST_SUMS + SMALL_STATES),
        "14b stochastic": Steps("qwen2.5-14b", 4, must=10300, aim=11000, peers=(6070, 4750), flags=FAST_SUMS + SMALLEST_STATES),
    },
    "recipes": {
        "8b long": Steps("llama-3.1-8b", 1, 8192, base=None, must=16500, flags=FAST_SUMS + SMALL_STATES),
        "gpt2 block": Steps("gpt2", 64, fp8="block", must_ratio=1.0),
        "1b block": Steps("llama-3.2-1b", 12, fp8="block", must_ratio=1.2, flags=SMALL_STATES),
        "8b block": Steps("llama-3.1-8b", 8, fp8="block", must_ratio=1.2, flags=SMALL_STATES),
    },
    "heads": {
        "gpt2 heads": Heads("gpt2", 64),
        "1b heads": Heads("llama-3.2-1b", 12, SMALL_STATES),
        "8b heads": Heads("llama-3.1-8b", 8, SMALL_STATES),
        "8b heads, fast sums": Heads("llama-3.1-8b", 8, FAST_SUMS + SMALL_STATES),
    },
    "runs": {
        "gpt2 statistics": Statistics("gpt2", 64, 1.15),
        "1b statistics": Statistics("llama-3.2-1b", 12, 1.15),
        "1b targets": Targets("llama-3.2-1b", 12, 1, 0.4, must_ratio=1.1, flags=SMALL_STATES),
        "8b targets": Targets("llama-3.1-8b", 2, 8, 0.59, must=19800, flags=FAST_SUMS + SMALL_STATES),
    },
}
CASES = {name: case for group in GROUPS.values() for name, case in group.items()}


def line(name, row):
    missed = [text for ok, text in row["must"] if not ok]
    reached = row.get("aim") and row["measured"] >= row["aim"]
    verdict = f"missed: {', '.join(missed)}" if missed else "aim reached" if reached else "ok"
    def figure(value):
        return f"{value:,.0f}" if value else ""
    def ratio(value):
        return f"{value:.2f}x" if value else ""
    return (f"| {name} | {row['what']} | {figure(row['base'])} | {figure(row['measured'])} | {ratio(row['ratio'])} | "
            f"{', '.join(text for _, text in row['must'])} | {figure(row.get('aim'))} | {figure(row.get('peer'))} | {verdict} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["models"], choices=[*GROUPS, *CASES], metavar="NAME")
    parser.add_argument("--octet", default="build/release/octet")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3, help="of every case but those of the group runs [%(default)s]")
    parser.add_argument("--steps", type=int, default=30, help="of the group runs, at least 7")
    parser.add_argument("--length", type=int, default=1024, help="of the sequences of the groups heads and runs")
    parser.add_argument("--logs", default="build/gpu-check")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of octet for every case")
    parser.add_argument("--json", help="where the rows are written as well")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the run and removes its folder, too
    if not shutil.which(args.octet):
        parser.error(f"there is no program {args.octet}: build it, or name it with --octet")
    if args.steps < 7:
        parser.error(f"--steps is {args.steps}, expected 7 or more: the first six are not counted")
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, expected 1 or more")
    pathlib.Path(args.logs).mkdir(parents=True, exist_ok=True)
    if args.json:
        pathlib.Path(args.json).unlink(missing_ok=True)
    names = [name for given in args.cases for name in GROUPS.get(given, {given: None})]

    rows, ok = {}, True
    print("| case | tokens per second, unless noted | BF16 or base | measured | ratio | must | aim | PyTorch, best | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        try:
            rows[name] = CASES[name].measure(args, name)
        except Failed as failure:
            print(f"| {name} | FAILED: {failure} |", flush=True)
            ok = False
            continue
        print(line(name, rows[name]), flush=True)
        ok = ok and all(reached for reached, _ in rows[name]["must"])
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
