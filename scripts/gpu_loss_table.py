#!/usr/bin/env python3
"""Trains GPT-2 (124M) or a model of Llama-3.2-1B's size on a text, once per setting and seed, and prints the
evaluation losses as a table: what FP8, its head and the small optimizer states cost against BF16 with fp32 moments.

    scripts/gpu_loss_table.py gpt2 --dataset corpus.jsonl.zst --tokenizer gpt2.json --json losses.json [--seeds 1 2]
                              [--settings bf16 fp8 ...] [--against SETTING] [--branch STEP] [--rows N] [--steps N]
                              [--octet build/release/octet]

The beds: gpt2: 128 x 1,024 tokens a step, 500 steps, learning rate 1e-3, warm-up of 60 steps;
gpt2-short: the same with 16 x 1,024 tokens, for many seeds; llama-1b: 24 x 1,024 tokens, 300 steps, 6e-4, warm-up of 30.
octet holds out 5 % of the tokens: random documents, or the end of a plain text. A step has two micro-batches; with at most
8 rows, "fast sums" include those of the weights' gradients. The training loss is the mean of steps 460, 470, 480, 490 and 500
(llama-1b: 280, 290 and 300).
The table compares runs of one seed and one program with --against, and gives the standard error of the mean difference.

With --branch STEP, one run with the setting of --against goes up to that step and saves a checkpoint. Every setting starts from it,
--against as well. So the runs of a seed differ only in what happens after that step. The checkpoint takes up to 12 bytes per weight
in the folder for temporary files (TMPDIR), and is removed after its seed.

Results that --json already has are not repeated, so a table can be made in several calls. They count only for the same program,
text and tokenizer, which are recognised by their checksums. With --branch, a seed that lacks a result is done again as a whole.
Every run is one process on the GPU.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

GPT2 = ["--model_preset", "gpt2", "--learning_rate", "1e-3", "--warmup_steps", "60"]
BEDS = {
    "gpt2": GPT2,
    "gpt2-short": GPT2,
    "llama-1b": ["--model_preset", "llama-3.2-1b", "--learning_rate", "6e-4", "--warmup_steps", "30"],
}
STEPS = {"gpt2": 500, "gpt2-short": 500, "llama-1b": 300}
SEQUENCES = {"gpt2": 128, "gpt2-short": 16, "llama-1b": 24}  # of a step
FP8 = ["--mixed_precision", "fp8", "--fp8_stats_steps", "0"]
BF16_HEAD = [*FP8, "--fp8_head", "none"]
SETTINGS = {
    "bf16": ["--mixed_precision", "bf16"],
    "fp8": FP8,
    "fp8, BF16 head": BF16_HEAD,
    "fp8, head forward": [*FP8, "--fp8_head", "forward"],
    "fp8, head dgrad": [*FP8, "--fp8_head", "dgrad"],
    "fp8, head wgrad": [*FP8, "--fp8_head", "wgrad"],
    "fp8, head backward": [*FP8, "--fp8_head", "backward"],
    "fp8, head all": [*FP8, "--fp8_head", "all"],
    "fp8, exact sums": [*FP8, "--fp8_fast_accum", "none"],
    "fp8, BF16 head, exact sums": [*BF16_HEAD, "--fp8_fast_accum", "none"],
    "fp8, fast sums": [*FP8, "--fp8_fast_accum", "all"],
    "fp8, fast sums but for weights": [*FP8, "--fp8_fast_accum", "forward_dgrad"],
    "fp8, head all, fast sums but for weights": [*FP8, "--fp8_head", "all", "--fp8_fast_accum", "forward_dgrad"],
    "fp8, head all, 8-bit moments, compact, fast sums but for weights": [*FP8, "--fp8_head", "all", "--optimizer_state", "fp8",
                                                                         "--master_weights", "compact", "--fp8_fast_accum",
                                                                         "forward_dgrad"],
    "fp8, head all, 8-bit moments, compact, fast sums": [*FP8, "--fp8_head", "all", "--optimizer_state", "fp8", "--master_weights",
                                                         "compact", "--fp8_fast_accum", "all"],
    "fp8, 8-bit moments, stochastic, fast sums but for weights": [*FP8, "--optimizer_state", "fp8", "--master_weights", "stochastic",
                                                                  "--fp8_fast_accum", "forward_dgrad"],
    "fp8 current": [*FP8, "--fp8_recipe", "current"],
    "fp8 block": [*FP8, "--fp8_recipe", "block"],
    "fp8 e4m3": [*FP8, "--fp8_format", "e4m3"],
    "bf16, bf16 moments": ["--mixed_precision", "bf16", "--optimizer_state", "bf16"],
    "bf16, 8-bit moments": ["--mixed_precision", "bf16", "--optimizer_state", "fp8"],
    "bf16, 8-bit moments, compact": ["--mixed_precision", "bf16", "--optimizer_state", "fp8", "--master_weights", "compact"],
    "bf16, 8-bit moments, stochastic": ["--mixed_precision", "bf16", "--optimizer_state", "fp8", "--master_weights", "stochastic"],
    "fp8, BF16 head, 8-bit moments, compact": [*BF16_HEAD, "--optimizer_state", "fp8", "--master_weights", "compact"],
    "fp8, bf16 moments": [*FP8, "--optimizer_state", "bf16"],
    "fp8, 8-bit moments": [*FP8, "--optimizer_state", "fp8"],
    "fp8, 8-bit moments, stochastic": [*FP8, "--optimizer_state", "fp8", "--master_weights", "stochastic"],
    "fp8, 8-bit moments, compact": [*FP8, "--optimizer_state", "fp8", "--master_weights", "compact"],
    "fp8, 8-bit moments, compact, fast sums": [*FP8, "--optimizer_state", "fp8", "--master_weights", "compact", "--fp8_fast_accum", "all"],
}


def command_of(args, folder, name, setting, seed):
    """Everything is said here: a resumed run would take from its checkpoint what neither a file nor a flag says."""
    file = pathlib.Path(folder, "seed.yaml")
    file.write_text(f"seed: {seed}\n")
    return [args.octet, "train", str(file), *BEDS[args.bed], "--per_device_train_batch_size", str(args.rows),
            "--gradient_accumulation_steps", str(SEQUENCES[args.bed] // args.rows), "--device", "cuda", "--dataset", args.dataset,
            "--tokenizer", args.tokenizer, "--max_seq_length", "1024", "--max_steps", str(args.steps), "--eval_split", "0.05",
            "--eval_steps", "0", "--eval_batches", "0", "--logging_steps", "10", "--use_tensorboard", "false", "--progress", "plain",
            "--output_dir", folder, "--run_name", name, *SETTINGS[setting]]


def checksum(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:12]


def identity_of(text):
    """Two texts of the same name differ in it: a file's SHA-256, or the checksums of prepared shards."""
    if not pathlib.Path(text).is_dir():
        return f"SHA-256 {checksum(text)}..."
    splits = json.loads(pathlib.Path(text, "manifest.json").read_text())
    return "shards " + " ".join(shard["crc32c"] for split in ("train", "validation") for shard in splits[split]["shards"])


def failed(command, code, errors):
    sys.exit(f"{' '.join(command)}\nfailed with {code}:\n{errors}")


def checkpoint_to_branch_from(args, folder, seed):
    """Trains up to --branch and stops there. The learning rate is that of a run with all steps."""
    command = [*command_of(args, folder, "trunk", args.against, seed), "--save_steps", str(args.branch), "--save_total_limit", "0"]
    errors = pathlib.Path(folder, "trunk.log")
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            while not (found := list(pathlib.Path(folder, "trunk").glob(f"checkpoints*/step_{args.branch}"))):
                if process.poll() is not None:
                    failed(command, process.returncode, errors.read_text())
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait()
    return found[0]


def train(args, folder, setting, seed, checkpoint):
    name = f"{args.bed}-{args.rows}-{list(SETTINGS).index(setting)}-{seed}"
    command = [*command_of(args, folder, name, setting, seed), "--save_strategy", "no"]
    if checkpoint:
        command += ["--resume", str(checkpoint)]
    start = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        failed(command, result.returncode, result.stderr)
    records = [json.loads(line) for line in pathlib.Path(folder, name, "metrics.jsonl").read_text().splitlines()]
    speeds = [record["tokens_per_second"] for record in records if record["step"] > args.branch + (args.steps - args.branch) // 5]
    losses = [record["loss"] for record in records if record["step"] > args.steps - args.steps // 10]
    return {"octet": args.program, "bed": args.bed, "dataset": args.dataset, "text": args.text_identity,
            "tokenizer": args.tokenizer_identity, "rows": args.rows, "steps": args.steps,
            "branch": args.branch, "trunk": args.against if args.branch else "", "setting": setting, "seed": seed,
            "eval_loss": records[-1]["eval_loss"], "train_loss": statistics.mean(losses), "tokens_per_second": statistics.median(speeds),
            "seconds": round(time.monotonic() - start, 1)}


def kind_of(row):
    rows = row.get("rows", SEQUENCES[row["bed"]] // 2)
    return row["bed"], row.get("text", ""), row.get("tokenizer", ""), rows, row["steps"], row.get("branch", 0), row.get("trunk", "")


def identity(row):
    return *kind_of(row), row["setting"], row["seed"], row.get("octet")


def table(results, kind, against):
    """Results of one kind as a Markdown table; differences are between runs of the same seed."""
    results = [row for row in results if kind_of(row) == kind]
    base = {(row["seed"], row.get("octet")): row["eval_loss"] for row in results if row["setting"] == against}
    if not base:
        print(f"no run has {against}: nothing is compared", file=sys.stderr)
    lines = [f"| setting | seeds | evaluation loss | difference to {against} | standard error | each seed | tokens per second |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for setting in SETTINGS:
        runs = sorted((row for row in results if row["setting"] == setting), key=lambda row: row["seed"])
        if not runs:
            continue
        pairs = [(row["eval_loss"], base.get((row["seed"], row.get("octet")))) for row in runs if setting != against]
        differences = [100 * (loss / other - 1) for loss, other in pairs if other]
        mean = f"{statistics.mean(differences):+.3f} %" if differences else ""
        error = f"{statistics.stdev(differences) / len(differences) ** 0.5:.3f} %" if len(differences) > 1 else ""
        each = ", ".join(f"{value:+.2f}" for value in differences)
        lines.append(f"| {setting} | {len(runs)} | {statistics.mean(row['eval_loss'] for row in runs):.4f} | {mean} | {error} | {each} | "
                     f"{statistics.median(row['tokens_per_second'] for row in runs):,.0f} |")
    return "\n".join(lines)


def save(path, results):
    """A kill while it writes loses nothing."""
    whole = path.with_name(path.name + ".tmp")
    whole.write_text(json.dumps(results, indent=1))
    whole.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bed", choices=list(BEDS))
    parser.add_argument("--dataset", required=True, help="a file as octet train takes it, or a folder that octet prepare wrote")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--json", required=True, help="results, also those of earlier calls")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--settings", nargs="+", default=["bf16", "fp8, BF16 head", "fp8"], choices=list(SETTINGS), metavar="SETTING",
                        help="any of: " + "; ".join(SETTINGS))
    parser.add_argument("--against", default="bf16", choices=list(SETTINGS), metavar="SETTING", help="what the others are compared with, seed by seed; default: bf16")
    parser.add_argument("--branch", type=int, default=0, metavar="STEP",
                        help="start from a run with the setting of --against after this many steps; 0: from random weights")
    parser.add_argument("--steps", type=int, default=0, help="0: those of the bed")
    parser.add_argument("--rows", type=int, default=0, help="sequences of a micro-batch; 0: half of a step's")
    parser.add_argument("--octet", default="build/release/octet")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the run, too
    if args.steps and args.steps < 10:
        parser.error(f"--steps: expected 0 or at least 10, got {args.steps}")
    args.steps = args.steps or STEPS[args.bed]
    if not 0 <= args.branch <= args.steps - args.steps // 10:
        parser.error(f"--branch: expected 0 to {args.steps - args.steps // 10} (the training loss is a mean over the last "
                     f"{args.steps // 10} steps), got {args.branch}")
    for name in ("dataset", "tokenizer"):
        if not pathlib.Path(getattr(args, name)).exists():
            parser.error(f"--{name}: {getattr(args, name)} does not exist")
    if pathlib.Path(args.tokenizer).is_dir():
        parser.error(f"--tokenizer: {args.tokenizer} is a folder, expected its tokenizer.json")
    if pathlib.Path(args.dataset).is_dir() and not pathlib.Path(args.dataset, "manifest.json").exists():
        parser.error(f"--dataset: {args.dataset} has no manifest.json; expected a file, or a folder that octet prepare wrote")
    if not shutil.which(args.octet):
        parser.error(f"--octet: there is no program {args.octet}; build it, or name another")

    args.program = checksum(shutil.which(args.octet))
    args.text_identity, args.tokenizer_identity = identity_of(args.dataset), checksum(args.tokenizer)
    args.rows = args.rows or SEQUENCES[args.bed] // 2
    if args.rows < 1 or SEQUENCES[args.bed] % args.rows:
        parser.error(f"--rows: a step has {SEQUENCES[args.bed]} sequences, which {args.rows} does not divide")

    path = pathlib.Path(args.json)
    if not path.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {path.absolute().parent}")
    try:
        results = json.loads(path.read_text()) if path.exists() else []
        done = {identity(row) for row in results}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        parser.error(f"--json: {path} has no results of this script: {error!r}")
    kind = (args.bed, args.text_identity, args.tokenizer_identity, args.rows, args.steps, args.branch,
            args.against if args.branch else "")
    for seed in args.seeds:
        settings = [setting for setting in args.settings if (*kind, setting, seed, args.program) not in done]
        if args.branch and settings:
            settings = list(dict.fromkeys([args.against, *args.settings]))
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = checkpoint_to_branch_from(args, folder, seed) if args.branch and settings else None
            for setting in settings:
                row = train(args, folder, setting, seed, checkpoint)
                results = [other for other in results if identity(other) != identity(row)] + [row]
                save(path, results)
                print(f"{setting}, seed {seed}: {row['eval_loss']:.4f} (training {row['train_loss']:.4f}), "
                      f"{row['tokens_per_second']:,.0f} tokens/s, {row['seconds']} s", flush=True)
    if others := sum(kind_of(row) != kind for row in results):
        print(f"{others} results of {path} are not shown: they have another text, tokenizer, bed, --rows, --steps or --branch",
              file=sys.stderr)
    print(f"text: {args.dataset}, {args.text_identity}\n{table(results, kind, args.against)}")


if __name__ == "__main__":
    main()
