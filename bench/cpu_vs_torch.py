#!/usr/bin/env python3
"""Trains the same small models in octet and in eager PyTorch on the CPU, fp32, and prints the ratio of their speeds.

    bench/cpu_vs_torch.py [--octet build/release/octet] [--python python3] [--threads 2] [--steps 10] [--rounds 3]

Both take turns, and the best of all rounds counts: on a machine with other work, some rounds are slow.
--python names an interpreter that has torch; without one the program says so and ends with 77.
"""
import argparse
import json
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default="build/release/octet")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--steps", default="10")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode != 0:
        print(f"{args.python} has no torch; name one that has with --python")
        return 77

    print(f"| model, rows x length | octet tok/s | PyTorch eager tok/s | ratio |  ({args.threads} threads, fp32)")
    print("| --- | --- | --- | --- |")
    for preset, rows, length, torch_model in CASES:
        ours = theirs = 0
        for _ in range(args.rounds):
            with tempfile.NamedTemporaryFile(suffix=".json") as figures:
                subprocess.run([args.octet, "bench", "--device", "cpu", "--variants", "fp32", "--model_preset", preset,
                                "--per_device_train_batch_size", str(rows), "--max_seq_length", str(length),
                                "--num_threads", args.threads, "--bench_steps", args.steps, "--json", figures.name],
                               check=True, capture_output=True)
                ours = max(ours, json.load(open(figures.name))[0]["tokens_per_second"])
            output = subprocess.run([args.python, str(HERE / "torch_cpu.py"), *torch_model, "--vocab", "257", "--seq",
                                     str(length), "--batch", str(rows), "--steps", args.steps, "--threads", args.threads,
                                     "--dtype", "fp32"], check=True, capture_output=True, text=True).stdout
            theirs = max(theirs, json.loads(output.strip().splitlines()[-1])["tokens_per_second"])
        print(f"| {preset}, {rows} x {length} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f}x |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
