#!/usr/bin/env python3
"""Trains the same small models in octet and in eager PyTorch on the CPU, fp32, and prints the ratio of their speeds.

    bench/cpu_vs_torch.py [--octet build/release/octet] [--python python3] [--threads 2] [--steps 10] [--rounds 3]
                          [--probe build/release/product_bench]

Both take turns, and every other round begins with PyTorch. The table has the best of all rounds, because on a machine with
other work some are slow, and the ratio of the means. With --probe every core is measured with a matrix product before each
run, which then has the fastest ones, of different physical cores. On virtual machines a core may have half its speed while
a neighbour uses the other half.
--python names an interpreter that has torch; without one the program says so and ends with 77.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
# octet's preset, rows, length, and the same model for bench/torch_cpu.py
CASES = [
    ("gpt2-tiny", 8, 128, ["--family", "gpt2", "--layers", "4", "--width", "128", "--heads", "4", "--ffn", "512"]),
    ("llama-tiny", 8, 128, ["--family", "llama", "--layers", "4", "--width", "128", "--heads", "4", "--kv_heads", "2",
                            "--ffn", "384"]),
    ("gpt2-tiny", 8, 512, ["--family", "gpt2", "--layers", "4", "--width", "128", "--heads", "4", "--ffn", "512"]),
]


def run(command, cores, input=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, input=input,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores)).stdout


def siblings(core):
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else str(core)


def fastest_cores(probe, count):
    speeds = {core: float(run([probe, "probe"], {core})) for core in os.sched_getaffinity(0)}
    fastest = {}
    for core in sorted(speeds, key=speeds.get, reverse=True):
        fastest.setdefault(siblings(core), core)
    cores = list(fastest.values())[:count]
    print(f"cores {cores}: {[speeds[core] for core in cores]} GFLOP/s, the slowest has {min(speeds.values())}", file=sys.stderr)
    return set(cores)


def octet_speed(args, cores, preset, rows, length):
    with tempfile.NamedTemporaryFile(suffix=".json") as figures:
        run([args.octet, "bench", "--device", "cpu", "--variants", "fp32", "--model_preset", preset,
             "--per_device_train_batch_size", str(rows), "--max_seq_length", str(length), "--num_threads", str(args.threads),
             "--bench_steps", str(args.steps), "--json", figures.name], cores)
        return json.load(open(figures.name))[0]["tokens_per_second"]


def torch_speed(args, cores, model, rows, length):
    output = run([args.python, str(HERE / "torch_cpu.py"), *model, "--vocab", "257", "--seq", str(length), "--batch", str(rows),
                  "--steps", str(args.steps), "--threads", str(args.threads), "--dtype", "fp32"], cores)
    return json.loads(output.strip().splitlines()[-1])["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default="build/release/octet")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--probe", help="product_bench: run on the cores where it is fastest")
    args = parser.parse_args()
    if subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode != 0:
        print(f"{args.python} has no torch; name one that has with --python")
        return 77

    def cores():
        return fastest_cores(args.probe, args.threads) if args.probe else os.sched_getaffinity(0)

    print(f"| model, rows x length | octet tok/s | PyTorch eager tok/s | ratio | of the means |  ({args.threads} threads, fp32)")
    print("| --- | --- | --- | --- | --- |")
    for preset, rows, length, torch_model in CASES:
        programs = [lambda: octet_speed(args, cores(), preset, rows, length),
                    lambda: torch_speed(args, cores(), torch_model, rows, length)]
        speeds = [[], []]
        for number in range(args.rounds):
            for program in (0, 1) if number % 2 == 0 else (1, 0):
                speeds[program].append(programs[program]())
            print(f"{preset}, {rows} x {length}: {speeds[0][-1]:,.0f}, PyTorch {speeds[1][-1]:,.0f}", file=sys.stderr)
        ours, theirs = max(speeds[0]), max(speeds[1])
        print(f"| {preset}, {rows} x {length} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f}x | "
              f"{sum(speeds[0]) / sum(speeds[1]):.2f}x |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
