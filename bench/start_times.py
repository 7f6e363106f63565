#!/usr/bin/env python3
"""Measures how long a run takes from the command to its first step and to full speed, from a Hugging Face folder on disk.

  python3 bench/random_hf_model.py --size 8b --tokenizer tokenizer.json FOLDER
  octet prepare --dataset TEXT --tokenizer tokenizer.json --output DATASET
  python3 bench/start_times.py FOLDER --rows 8 --dataset DATASET [--cold] [--octet build/release/octet]

The run is started twice. The cache folder is empty before the first run, which has to time GEMM algorithms; the second knows them.
Full speed begins with the first of three steps in a row that take at most 1.05 times the median of the second half. Below the table
stands what octet says about its start, and how long reading the weights alone takes. The weights are in the page cache, or with
--cold, they have left it before each of these.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def weight_files(folder):
    return sorted(Path(folder).glob("*.safetensors"))


def forget(folder):
    """The weights leave the page cache."""
    for path in weight_files(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if is_cached(file, 0) or is_cached(file, path.stat().st_size // 2):
                sys.exit(f"--cold: {path} stays in the page cache")


def is_cached(file, place):
    try:
        return os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def seconds_to_read(folder):
    buffer = bytearray(16 << 20)
    begin = time.monotonic()
    for path in weight_files(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.monotonic() - begin


def start(args, cache, name):
    """Seconds from the command to the end of each step, the milliseconds of the steps, and what octet says about the start."""
    if args.cold:
        forget(args.folder)
    command = [args.octet, "train", "--model_name_or_path", args.folder, "--dataset", args.dataset, "--tokenizer",
               str(Path(args.folder, "tokenizer.json")), "--mixed_precision", "fp8",
               "--optimizer_state", "fp8", "--master_weights", "compact", "--per_device_train_batch_size", str(args.rows),
               "--max_seq_length", str(args.length), "--gradient_accumulation_steps", "1", "--max_steps", str(args.steps), "--logging_steps", "1",
               "--eval_strategy", "no", "--sample_steps", "0", "--fp8_stats_steps", "0", "--save_strategy", "no",
               "--use_tensorboard", "false", "--progress", "plain", "--output_dir", cache, "--run_name", name]
    begin = time.time()
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OCTET_CACHE": cache})
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with {result.returncode}:\n{result.stderr}")
    records = [json.loads(line) for line in Path(cache, name, "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "step_ms" in record]
    said = [line for line in result.stdout.splitlines() if line.startswith("ready after")]
    if len(said) != 1:
        sys.exit(f"{' '.join(command)}\nprinted no line 'ready after':\n{result.stdout}")
    return [record["time"] - begin for record in records], [record["step_ms"] for record in records], said[0]


def first_at_full_speed(times):
    """None if there are no three steps in a row."""
    limit = 1.05 * statistics.median(times[len(times) // 2:])
    return next((i for i in range(len(times) - 2) if max(times[i:i + 3]) <= limit), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--dataset", required=True, help="a folder that octet prepare has written")
    parser.add_argument("--rows", type=int, default=8, help="sequences in a batch")
    parser.add_argument("--length", type=int, default=1024, help="tokens in a sequence")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cold", action="store_true", help="weights are read from the disk, not from the page cache")
    parser.add_argument("--octet", default="build/release/octet")
    args = parser.parse_args()
    if not shutil.which(args.octet):
        parser.error(f"--octet: there is no program {args.octet}; build it, or name another")
    if not Path(args.folder, "tokenizer.json").is_file():
        parser.error(f"{args.folder} has no tokenizer.json; bench/random_hf_model.py --tokenizer copies one")
    if args.steps < 6:
        parser.error(f"--steps: expected at least 6, got {args.steps}")
    if not Path(args.dataset).is_dir():
        parser.error(f"--dataset: {args.dataset} is no folder; the first run would prepare the text and take longer")
    if not weight_files(args.folder):
        parser.error(f"{args.folder} has no weights (*.safetensors)")
    if not args.cold:
        seconds_to_read(args.folder)  # into the page cache
    said = []
    print("| run | first step ends after | it takes | full speed begins after | with step | a step then takes |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "second"):
            ends, times, text = start(args, cache, name)
            said.append(f"{name}: {text}")
            fast = first_at_full_speed(times)
            if fast is None:
                sys.exit(f"the {name} run had no steady speed in {len(times)} steps: {[round(ms) for ms in times]} ms")
            print(f"| {name} | {ends[0]:.1f} s | {times[0] / 1e3:.2f} s | {ends[fast] - times[fast] / 1e3:.1f} s | {fast + 1} | "
                  f"{statistics.median(times[fast:]):.0f} ms |", flush=True)
    print("\n".join(["", *said]))
    if args.cold:
        forget(args.folder)
    size = sum(path.stat().st_size for path in weight_files(args.folder))
    print(f"reading {size / 1e9:.1f} GB of weights alone: {seconds_to_read(args.folder):.1f} s")


if __name__ == "__main__":
    main()
