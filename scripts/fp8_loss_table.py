#!/usr/bin/env python3
"""Trains small models on a text in BF16, in every FP8 recipe or with small optimizer states, several seeds each, and prints the
table of final evaluation losses: mean and standard deviation over the seeds, mean difference to the first variant's run of the
same seed and its standard error.

    scripts/fp8_loss_table.py --text tinyshakespeare.txt [--octet build/release/octet] [--steps 500] [--seeds 3] [--rows 8] [--length 128] [--lr 6e-4]
                              [--models llama-tiny gpt2-tiny] [--variants bf16 ...] [--set KEY=VALUE ...] [--device cpu] [--jobs N] [--json out.json]

Every run uses one thread; --jobs runs work in parallel.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

VARIANTS = {
    "bf16": ["--mixed_precision", "bf16"],
    "delayed": ["--fp8_recipe", "delayed"],
    "current": ["--fp8_recipe", "current"],
    "block": ["--fp8_recipe", "block"],
    "mxfp8": ["--fp8_recipe", "mxfp8"],
    "delayed + head": ["--fp8_recipe", "delayed", "--fp8_head", "all"],
    "delayed e4m3": ["--fp8_recipe", "delayed", "--fp8_format", "e4m3"],
    "delayed e5m2": ["--fp8_recipe", "delayed", "--fp8_format", "e5m2"],
}
# States of the optimizer, in BF16 runs.
STATES = {
    "bf16 moments": ["--optimizer_state", "bf16"],
    "8-bit moments": ["--optimizer_state", "fp8"],
    "compact": ["--master_weights", "compact"],
    "compact, 8-bit moments": ["--master_weights", "compact", "--optimizer_state", "fp8"],
    "stochastic": ["--master_weights", "stochastic"],
    "stochastic, 8-bit moments": ["--master_weights", "stochastic", "--optimizer_state", "fp8"],
}
FLAGS = {**VARIANTS, **{name: [*VARIANTS["bf16"], *flags] for name, flags in STATES.items()}}


def train(args, folder, model, variant, seed):
    name = f"{model}-{variant}-{seed}".translate(str.maketrans(" +,", "---"))
    settings = [word for setting in args.set for word in ("--" + setting).split("=", 1)]
    command = [args.octet, "train", "--model_preset", model, "--dataset", args.text, "--tokenizer", "bytes",
               "--max_seq_length", str(args.length), "--per_device_train_batch_size", str(args.rows), "--max_steps", str(args.steps),
               "--warmup_steps", "20", "--learning_rate", args.lr, "--eval_steps", "0", "--eval_batches", str(max(1, 40960 // (args.rows * args.length))),
               "--logging_steps", "50", "--seed", str(seed), "--device", args.device, "--num_threads", "1",
               "--save_strategy", "no", "--data_order", "random", "--use_tensorboard", "false",
               "--output_dir", folder, "--run_name", name, "--progress", "plain", *FLAGS[variant], *settings]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nfailed with {result.returncode}:\n{result.stderr}")
    lines = pathlib.Path(folder, name, "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["eval_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="file of text, read as bytes")
    parser.add_argument("--octet", default="build/release/octet", help="the program [%(default)s]")
    parser.add_argument("--steps", type=int, default=500, help="steps of each run [%(default)s]")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant [%(default)s]")
    parser.add_argument("--rows", type=int, default=8, help="sequences per step [%(default)s]")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence [%(default)s]")
    parser.add_argument("--lr", default="6e-4", help="largest learning rate [%(default)s]")
    parser.add_argument("--models", nargs="+", default=["llama-tiny", "gpt2-tiny"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(FLAGS), metavar="VARIANT",
                        help="any of: " + "; ".join(FLAGS) + "; default: the first " + str(len(VARIANTS)))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run, such as adam_beta2=0.999")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at the same time [one per core]")
    parser.add_argument("--json", help="also write all losses to this file")
    args = parser.parse_args()
    for name in ("steps", "seeds", "rows", "length", "jobs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; expected 1 or more")
    for setting in args.set:
        if "=" not in setting:
            parser.error(f"--set {setting}: expected KEY=VALUE")
    if args.json and not pathlib.Path(args.json).absolute().parent.is_dir():
        parser.error(f"--json: there is no folder for {args.json}")
    if not shutil.which(args.octet):
        parser.error(f"there is no program {args.octet}: build it, or name it with --octet")
    if not pathlib.Path(args.text).is_file():
        parser.error(f"there is no file {args.text}")

    jobs = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for model in args.models:
            for variant in args.variants:
                for seed in range(1, args.seeds + 1):
                    jobs[model, variant, seed] = pool.submit(train, args, folder, model, variant, seed)
        names = {job: key for key, job in jobs.items()}
        for done, job in enumerate(concurrent.futures.as_completed(names), start=1):
            model, variant, seed = names[job]
            note = f"{done}/{len(jobs)} {model}, {variant}, seed {seed}: eval loss {job.result():.4f}"
            print(note, file=sys.stderr, flush=True)
        losses = {key: job.result() for key, job in jobs.items()}

    seeds = range(1, args.seeds + 1)
    print(f"{args.steps} steps of {args.rows} x {args.length} tokens, learning rate {args.lr}, {args.seeds} seeds, device {args.device}"
          + "".join(f", {setting}" for setting in args.set))
    print(f"| model | variant | eval loss | standard deviation | against {args.variants[0]} | standard error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in args.models:
        for variant in args.variants:
            values = [losses[model, variant, seed] for seed in seeds]
            deviation = f"{statistics.stdev(values):.4f}" if args.seeds > 1 else ""
            differences = [100 * (losses[model, variant, seed] / losses[model, args.variants[0], seed] - 1) for seed in seeds]
            error = f"{statistics.stdev(differences) / args.seeds ** 0.5:.3f} %" if args.seeds > 1 else ""
            cells = [f"{statistics.mean(differences):+.3f} %", error] if variant != args.variants[0] else ["", ""]
            print(f"| {model} | {variant} | {statistics.mean(values):.4f} | {deviation} | {' | '.join(cells)} |")
    if args.json:
        rows = [{"model": m, "variant": v, "seed": s, "eval_loss": x} for (m, v, s), x in losses.items()]
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
