#!/usr/bin/env python3
"""Measures training steps on this machine's GPU and compares them with the figures that they must reach.

    scripts/gpu_speed_table.py [--cases NAME ...] [--octet build/release/octet] [--logs FOLDER] [--json FILE]

--cases takes names of cases or of the groups models (the default), recipes and runs. 'models' are whole steps of the
presets, 'recipes' the block recipe and long sequences, and 'runs' real training runs: what FP8 statistics cost, and what a
head saves that leaves out tokens without a target. One table is printed; the exit code is 1 if a figure was missed.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

SMALL_STATES = ["--optimizer_state", "fp8", "--master_weights", "compact"]
SMALLEST_STATES = ["--optimizer_state", "fp8", "--master_weights", "stochastic"]


class Failed(Exception):
    pass


def run_octet(args, name, *words):
    log = pathlib.Path(args.logs, name.replace(" ", "-") + ".log")
    with open(log, "w") as output:
        code = subprocess.run([args.octet, *words], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if code != 0:
        raise Failed(f"exit code {code}, see {log}")


class Steps:
    """`octet bench` of two variants. Required: tokens per second of the second one, or its ratio to the first one."""

    def __init__(self, preset, rows, length=1024, fp8="delayed", base="bf16", must=0, aim=0, must_ratio=0, peers=(0, 0), flags=()):
        self.preset, self.rows, self.length, self.variants, self.flags = preset, rows, length, [base, fp8], flags
        self.must, self.aim, self.must_ratio, self.peers = must, aim, must_ratio, peers

    def measure(self, args, name):
        figures = pathlib.Path(args.logs, name.replace(" ", "-") + ".json")
        figures.unlink(missing_ok=True)
        variants = [variant for variant in self.variants if variant]
        run_octet(args, name, "bench", "--device", args.device, "--model_preset", self.preset, "--per_device_train_batch_size",
                  str(self.rows), "--max_seq_length", str(self.length), "--gradient_checkpointing", "none", "--variants",
                  ",".join(variants), "--bench_steps", "10", "--json", str(figures), *self.flags)
        speeds = [run["tokens_per_second"] for run in json.loads(figures.read_text())]
        base, fp8 = speeds if len(speeds) == 2 else (None, speeds[0])
        ratio = fp8 / base if base else None
        wanted = []
        if self.must:
            wanted.append((fp8 >= self.must, f"{self.must:,}"))
        if self.must_ratio:
            wanted.append((ratio >= self.must_ratio, f"{self.must_ratio:.2f}x"))
        peer, peer_bf16 = self.peers
        if peer_bf16 and base:
            wanted.append((base >= peer_bf16, f"BF16 {peer_bf16:,}"))
        return {"what": f"{self.preset}, {self.rows} x {self.length}, {self.variants[1]}", "base": base, "measured": fp8, "ratio": ratio,
                "must": wanted, "aim": self.aim, "peer": peer}


def train(args, name, folder, *words):
    """The records of a run's steps, without the first five."""
    run_octet(args, name, "train", "--device", args.device, "--save_strategy", "no", "--use_tensorboard", "false", "--eval_steps", "0",
              "--eval_split", "0", "--logging_steps", "1", "--progress", "plain", "--output_dir", folder,
              "--run_name", name.replace(" ", "-"), *words)
    path = pathlib.Path(folder, name.replace(" ", "-"), "metrics.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if "step_ms" in record and record["step"] > 5]


class Statistics:
    """A step with FP8 statistics against one without, in one run that records every second step."""

    def __init__(self, preset, rows, must_ratio):
        self.preset, self.rows, self.must_ratio = preset, rows, must_ratio

    def measure(self, args, name):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            rng = random.Random(1)
            text.write_text(" ".join(str(rng.randrange(10**6)) for _ in range(10**6)))
            records = train(args, name, folder, "--model_preset", self.preset, "--dataset", str(text), "--tokenizer", "bytes",
                            "--vocab_size", "50304", "--per_device_train_batch_size", str(self.rows), "--max_seq_length", "1024",
                            "--max_steps", "45", "--fp8_stats_steps", "2")
        with_them = statistics.median(record["step_ms"] for record in records if record["step"] % 2 == 0)
        without = statistics.median(record["step_ms"] for record in records if record["step"] % 2 == 1)
        ratio = with_them / without
        return {"what": f"{self.preset}, {self.rows} x 1024, ms of a step without and with FP8 statistics", "base": without,
                "measured": with_them, "ratio": ratio, "must": [(ratio <= self.must_ratio, f"at most {self.must_ratio:.2f}x")]}


class Targets:
    """A fine-tuning run on synthetic conversations, `share` of whose tokens are targets, against one with all as targets."""

    def __init__(self, preset, rows, accumulation, share, must=0, must_ratio=0, flags=()):
        self.preset, self.rows, self.accumulation, self.share, self.flags = preset, rows, accumulation, share, flags
        self.must, self.must_ratio = must, must_ratio

    def measure(self, args, name):
        rng = random.Random(1)

        def words(count):
            return " ".join(rng.choice("abcdefghij") for _ in range(count))

        speeds = []
        with tempfile.TemporaryDirectory() as folder:
            for share in (1.0, self.share):
                data = pathlib.Path(folder, f"chats-{share}.jsonl")
                with open(data, "w") as file:
                    for _ in range(6000):
                        target = max(1, int(250 * share))
                        file.write(json.dumps({"instruction": words(250 - target), "output": words(target)}) + "\n")
                records = train(args, f"{name} {share}", folder, "--model_preset", self.preset, "--dataset", str(data), "--tokenizer", "bytes",
                                "--chat_template", "alpaca", "--per_device_train_batch_size", str(self.rows),
                                "--gradient_accumulation_steps", str(self.accumulation), "--max_seq_length", "1024", "--max_steps", "25",
                                "--fp8_stats_steps", "0", *self.flags)
                speeds.append(statistics.median(record["tokens_per_second"] for record in records))
        ratio = speeds[1] / speeds[0]
        wanted = [(speeds[1] >= self.must, f"{self.must:,}")] if self.must else []
        if self.must_ratio:
            wanted.append((ratio >= self.must_ratio, f"{self.must_ratio:.2f}x"))
        return {"what": f"{self.preset}, {self.rows} x 1024 x {self.accumulation}, all tokens are targets / {self.share:.0%}",
                "base": speeds[0], "measured": speeds[1], "ratio": ratio, "must": wanted}


# Peers: PyTorch with torch.compile on an H200 in its best precision, and in BF16.
GROUPS = {
    "models": {
        "gpt2": Steps("gpt2", 64, must=745000, aim=800000, peers=(483000, 483000)),
        "1b": Steps("llama-3.2-1b", 12, must=105000, aim=113000, peers=(74200, 65200), flags=SMALL_STATES),
        "3b": Steps("llama-3.2-3b", 12, must=45000, aim=47500, peers=(34100, 27200), flags=SMALL_STATES),
        "8b": Steps("llama-3.1-8b", 8, must=20300, aim=21800, peers=(16200, 11600), flags=SMALL_STATES),
        "14b": Steps("qwen2.5-14b", 4, must=10300, aim=11000, peers=(6070, 4750), flags=SMALLEST_STATES),
    },
    "recipes": {
        "8b long": Steps("llama-3.1-8b", 1, 8192, base=None, must=16500, flags=SMALL_STATES),
        "gpt2 block": Steps("gpt2", 64, fp8="block", must_ratio=1.0),
        "1b block": Steps("llama-3.2-1b", 12, fp8="block", must_ratio=1.2, flags=SMALL_STATES),
    },
    "runs": {
        "gpt2 statistics": Statistics("gpt2", 64, 1.15),
        "1b statistics": Statistics("llama-3.2-1b", 12, 1.15),
        "1b targets": Targets("llama-3.2-1b", 12, 1, 0.4, must_ratio=1.1, flags=SMALL_STATES),
        "8b targets": Targets("llama-3.1-8b", 2, 8, 0.59, must=19800, flags=SMALL_STATES),
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
    parser.add_argument("--logs", default="build/gpu-check")
    parser.add_argument("--json", help="where the rows are written as well")
    args = parser.parse_args()
    pathlib.Path(args.logs).mkdir(parents=True, exist_ok=True)
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
