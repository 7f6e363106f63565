#!/usr/bin/env python3
"""By how much FP8 changes the gradients of a model: of its layers alone, and of its head.

    bench/gradient_error.py MODEL --dataset DATASET [--tokenizer FILE] [--rows 16] [--length 128] [--micro_batches 1 8 32]
        [--heads backward all] [--seed 3] [--device cpu] [--octet PROGRAM]

MODEL is a Hugging Face folder (octet export). For each number of micro-batches, octet train runs two steps that change no weight,
in BF16, in FP8 with a BF16 head, and in FP8 with each of --heads (values of fp8_head). The first moments of AdamW are then the
gradients of both steps, weighted 9 to 10 (the second step has the scales that the first one left). Relative differences (2-norm),
for the embedding, which is also the head's weight in models that share it, and for everything else:

    layers      FP8 with a BF16 head, compared with BF16
    HEAD        FP8 with that fp8_head, compared with a BF16 head
    both        FP8 with the first of --heads, compared with BF16

Tokens are those of both steps. The more there are, the more errors that change from token to token cancel. What stays affects large
batches, too.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("this script needs numpy")

OCTET = Path(__file__).resolve().parent.parent / "build/release/octet"
HEADS = ["backward", "all", "forward", "dgrad", "wgrad"]


def precision_flags(run):
    return ["--mixed_precision", "bf16"] if run == "bf16" else ["--mixed_precision", "fp8", "--fp8_head", run]


def first_moments(folder):
    """Two vectors: of the embedding and of the other parameters."""
    path = next(Path(folder).glob("*/checkpoints*/step_2/optimizer.safetensors"), None)
    if path is None:
        sys.exit(f"{folder}: octet train has written no checkpoint of step 2")
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    parts = {True: [], False: []}
    for name, tensor in sorted(json.loads(data[8:begin]).items()):
        if not name.endswith(".m"):
            continue
        if tensor["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {tensor['dtype']}, expected F32")
        first, last = tensor["data_offsets"]
        values = np.frombuffer(data[begin + first:begin + last], dtype="<f4").astype(np.float64)
        parts[name.startswith("embedding.tokens")].append(values)
    return [np.concatenate(parts[True]), np.concatenate(parts[False])]


def gradients_of(args, run, micro_batches, folder):
    command = [args.octet, "train", "--model_name_or_path", args.model, "--dataset", args.dataset, "--device", args.device,
               "--per_device_train_batch_size", args.rows, "--max_seq_length", args.length,
               "--gradient_accumulation_steps", micro_batches, "--grad_accum_dtype", "fp32", "--optimizer_state", "fp32",
               "--max_grad_norm", 0, "--weight_decay", 0, "--learning_rate", 1e-12, "--warmup_steps", 0, "--max_steps", 2,
               "--eval_strategy", "no", "--seed", args.seed, "--output_dir", folder, *precision_flags(run)]
    if args.tokenizer:
        command += ["--tokenizer", args.tokenizer]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return first_moments(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--micro_batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--heads", nargs="+", default=["backward", "all"], choices=HEADS, help="values of fp8_head")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--octet", default=OCTET)
    args = parser.parse_args()
    args.heads = list(dict.fromkeys(args.heads))
    if not Path(args.octet).is_file():
        sys.exit(f"{args.octet} does not exist: build octet, or name its program with --octet")
    comparisons = {"layers": ("none", "bf16"), **{head: (head, "none") for head in args.heads}, "both": (args.heads[0], "bf16")}
    names = [f"{part}, {comparison}" for part in ("embedding", "rest") for comparison in comparisons]
    print("| tokens | " + " | ".join(names) + " |\n|" + " --- |" * (1 + len(names)))
    for micro_batches in args.micro_batches:
        with tempfile.TemporaryDirectory() as folder:
            gradients = {run: gradients_of(args, run, micro_batches, f"{folder}/{run}") for run in ("bf16", "none", *args.heads)}
        errors = []
        for part in (0, 1):
            for run, against in comparisons.values():
                value, exact = gradients[run][part], gradients[against][part]
                errors.append(np.linalg.norm(value - exact) / np.linalg.norm(exact))
        cells = [f"{2 * micro_batches * args.rows * args.length:,}", *(f"{100 * error:.2f} %" for error in errors)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
