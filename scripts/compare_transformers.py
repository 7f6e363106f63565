#!/usr/bin/env python3
"""Trains the same small models with octet and with Hugging Face Transformers and compares the losses of every step.

    scripts/compare_transformers.py [--octet build/release/octet] [--device cuda|cpu] [--size small|medium]
                                    [--models llama gpt2] [--precisions fp32 bf16 delayed current]
                                    [--reference bf16|fp32] [--text FILE] [--steps 100] [--seeds 0] [--json FILE]
                                    [--learning_rate 3e-4] [--warmup_steps N] [--rows N]

A 4-layer Llama (grouped KV heads, own head) and a 4-layer GPT-2 (tied head) are made by Transformers from a seed and
saved as a Hugging Face folder, which octet reads. Both train on the same windows of the same tokens, in order, with the
same AdamW (decay on matrices other than GPT-2's positions), clipping and schedule.

octet in fp32 is compared with PyTorch in fp32. octet in BF16 and FP8 is compared with PyTorch's fp32 weights under
autocast to BF16, or also with PyTorch in fp32 (--reference fp32). Differences are relative to PyTorch's loss:
  largest        the largest |octet - PyTorch| / PyTorch of any step
  mean of last   mean octet loss of the last 20 steps against PyTorch's
  from fp32      the largest difference of any step to PyTorch in fp32, for octet / for PyTorch's autocast. It shows
                 which of the two causes a difference (only if fp32 is among the precisions)
The exit code is 1 when a limit is missed. Needs torch, transformers, safetensors and numpy; runs without a network.
Without --text the text is octet's own documentation and sources.
"""
import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import numpy
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"the Python package `{error.name}` is missing: pip install torch transformers safetensors numpy")

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAST = 20

# bytes_per_token: a token is this many bytes of the text, as a number modulo the vocabulary.
SIZES = {
    "small": {"width": 128, "heads": 4, "kv_heads": 2, "ffn": {"llama": 384, "gpt2": 512}, "vocab": 512,
              "bytes_per_token": 1, "rows": 8, "length": 128, "warmup_steps": 20},
    "medium": {"width": 512, "heads": 8, "kv_heads": 4, "ffn": {"llama": 1408, "gpt2": 2048}, "vocab": 8192,
               "bytes_per_token": 2, "rows": 32, "length": 512, "warmup_steps": 40},
}

# Flags of octet, and limits in per cent: for every step, and for the mean of the last steps.
PRECISIONS = {
    "fp32": (["--mixed_precision", "fp32"], 0.01, None),
    "bf16": (["--mixed_precision", "bf16"], 0.3, None),
    "delayed": (["--mixed_precision", "fp8", "--fp8_recipe", "delayed"], 1.0, 0.25),
    "current": (["--mixed_precision", "fp8", "--fp8_recipe", "current"], 1.0, 0.25),
}

# With this rate, warm-up and batch size the reference itself trains smoothly. With 8 sequences of 512 tokens and a
# warm-up of 20 steps, the norm of GPT-2's gradient jumps to 20 at single steps. At twice the rate its loss jumps from
# 7.8 to 11.1. Such a jump multiplies every difference.
OPTIMIZER = {"learning_rate": 3e-4, "warmup_steps": 20, "min_lr_ratio": 0.1, "weight_decay": 0.1, "adam_beta1": 0.9,
             "adam_beta2": 0.95, "adam_epsilon": 1e-8, "max_grad_norm": 1.0}


def make_model(family, size):
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=size["vocab"], hidden_size=size["width"], intermediate_size=size["ffn"][family],
            num_hidden_layers=4, num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"],
            max_position_embeddings=size["length"], rms_norm_eps=1e-5, tie_word_embeddings=False))
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=size["vocab"], n_embd=size["width"], n_inner=size["ffn"][family], n_layer=4, n_head=size["heads"],
        n_positions=size["length"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))


def read_text(path):
    if path:
        return pathlib.Path(path).read_bytes()
    files = sorted(file for folder, pattern in (("docs", "*.md"), ("src", "*.cpp"), ("src", "*.h"))
                   for file in (ROOT / folder).rglob(pattern))
    return b"".join(file.read_bytes() for file in files)


def make_tokens(text, size):
    count = size["bytes_per_token"]
    values = numpy.frombuffer(text[:len(text) // count * count], dtype=numpy.uint8).reshape(-1, count).astype(numpy.int64)
    tokens = numpy.zeros(len(values), dtype=numpy.int64)
    for column in range(count):
        tokens = tokens * 256 + values[:, column]
    return (tokens % size["vocab"]).astype(numpy.uint16)


def batch_of(tokens, step, size):
    """octet's data_order sequential: adjacent windows, each with the token that follows it; then again from the front."""
    rows, length = size["rows"], size["length"]
    windows = (len(tokens) - 1) // length
    starts = [(step * rows + row) % windows * length for row in range(rows)]
    both = torch.from_numpy(numpy.stack([tokens[start:start + length + 1] for start in starts]).astype(numpy.int64))
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def learning_rate(step, steps):
    """Like src/step/schedule.cpp: the last warm-up step has the peak rate, the very last step the minimum."""
    peak, warmup = OPTIMIZER["learning_rate"], OPTIMIZER["warmup_steps"]
    if step < warmup:
        return peak * (step + 1) / warmup
    lowest = peak * OPTIMIZER["min_lr_ratio"]
    progress = 1.0 if step >= steps - 1 else (step - warmup) / (steps - 1 - warmup)
    return lowest + (peak - lowest) * 0.5 * (1 + math.cos(math.pi * progress))


def train_torch(args, folder, tokens, size, autocast):
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).to(args.device).train()
    decayed = {name for name, p in model.named_parameters() if p.dim() == 2 and not name.endswith("wpe.weight")}
    optimizer = torch.optim.AdamW(
        [{"params": [p for name, p in model.named_parameters() if name in decayed],
          "weight_decay": OPTIMIZER["weight_decay"]},
         {"params": [p for name, p in model.named_parameters() if name not in decayed], "weight_decay": 0.0}],
        lr=0.0, betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]), eps=OPTIMIZER["adam_epsilon"])
    losses, norms = [], []
    for step in range(args.steps):
        ids, targets = (t.to(args.device) for t in batch_of(tokens, step, size))
        with torch.autocast(args.device, torch.bfloat16) if autocast else contextlib.nullcontext():
            logits = model(ids, use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        # Without the 1e-6 that clip_grad_norm_ adds to the norm.
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        torch._foreach_mul_(gradients, torch.clamp(OPTIMIZER["max_grad_norm"] / norm, max=1.0))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        optimizer.step()
        losses.append(loss.item()), norms.append(norm.item())
    return losses, norms


def train_octet(args, folder, tokens_file, size, flags, work, name):
    command = [args.octet, "train", "--model_name_or_path", folder, "--dataset", tokens_file, "--tokenizer", "bytes",
               "--data_order", "sequential", "--eval_split", "0", "--eval_steps", "0", "--max_steps", args.steps,
               "--max_seq_length", size["length"], "--per_device_train_batch_size", size["rows"],
               "--lr_scheduler_type", "cosine", "--logging_steps", "1", "--save_strategy", "no", "--use_tensorboard", "false",
               "--sample_steps", "0", "--progress", "quiet", "--device", args.device, "--output_dir", work / "runs",
               "--run_name", name, *flags]
    for key, value in OPTIMIZER.items():
        command += [f"--{key}", value]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with open(work / "runs" / name / "metrics.jsonl") as file:
        records = [record for record in map(json.loads, file) if "loss" in record]
    if len(records) != args.steps:
        raise SystemExit(f"{name}: metrics.jsonl has {len(records)} losses, expected {args.steps}")
    for step, record in enumerate(records):
        expected = learning_rate(step, args.steps)
        if abs(record["lr"] - expected) > 1e-6 * expected:
            raise SystemExit(f"{name}: learning rate of step {step + 1} is {record['lr']}, expected {expected}")
    return [record["loss"] for record in records], [record["grad_norm"] for record in records]


def compare(ours, reference, step_limit, mean_limit):
    differences = [100 * (a - b) / b for a, b in zip(ours, reference)]
    worst = max(range(len(differences)), key=lambda i: abs(differences[i]))
    last = 100 * (sum(ours[-LAST:]) / sum(reference[-LAST:]) - 1)
    passed = all(map(math.isfinite, [*ours, *reference])) and abs(differences[worst]) <= step_limit and (
        mean_limit is None or abs(last) <= mean_limit)
    return {"largest": abs(differences[worst]), "largest_at_step": worst + 1, "mean_of_last": last, "passed": passed}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=SIZES, help="default: medium on cuda, small on cpu")
    parser.add_argument("--models", nargs="+", choices=("llama", "gpt2"), default=["llama", "gpt2"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--reference", choices=("bf16", "fp32"), default="bf16", help="what octet's BF16 and FP8 are compared with")
    parser.add_argument("--text", help="file whose bytes are the tokens")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the weights; the text is the same for all")
    parser.add_argument("--learning_rate", type=float, default=OPTIMIZER["learning_rate"])
    parser.add_argument("--warmup_steps", type=int, help="default: depends on the size")
    parser.add_argument("--rows", type=int, help="sequences per step; default: depends on the size")
    parser.add_argument("--json", help="also write all losses to this file")
    args = parser.parse_args()
    args.size = args.size or ("medium" if args.device == "cuda" else "small")
    if args.warmup_steps is None:
        args.warmup_steps = SIZES[args.size]["warmup_steps"]
    OPTIMIZER["learning_rate"], OPTIMIZER["warmup_steps"] = args.learning_rate, args.warmup_steps
    least = max(LAST, args.warmup_steps + 2)
    if args.steps < least:
        parser.error(f"--steps {args.steps}, expected at least {least}")
    return args


def main():
    args = parse_arguments()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    size = SIZES[args.size]
    if args.rows:
        size["rows"] = args.rows
    tokens = make_tokens(read_text(args.text), size)
    passes = args.steps * size["rows"] * size["length"] / len(tokens)
    print(f"{args.device}, torch {torch.__version__}; {args.size}: width {size['width']}, 4 layers, "
          f"{size['rows']} x {size['length']} tokens a step, {args.steps} steps, {passes:.2f} passes over the text; "
          f"learning rate {args.learning_rate:g} after {args.warmup_steps} steps")
    print("| model | seed | octet | PyTorch | first loss | last loss, octet / PyTorch | largest (step) | limit | "
          f"mean of last {LAST} | limit | from fp32 | |")
    print("|" + " --- |" * 12, flush=True)

    results, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        tokens.tofile(work / "tokens.bin")
        for family, seed in itertools.product(args.models, args.seeds):
            torch.manual_seed(seed)
            model = work / f"{family}-{seed}"
            make_model(family, size).save_pretrained(str(model))
            references = {}
            if "fp32" in args.precisions:  # first, so that all others can be measured against it
                references["fp32"] = train_torch(args, model, tokens, size, False)
            for precision in args.precisions:
                flags, step_limit, mean_limit = PRECISIONS[precision]
                kind = "fp32" if precision == "fp32" else args.reference
                if kind not in references:
                    references[kind] = train_torch(args, model, tokens, size, kind == "bf16")
                losses, norms = references[kind]
                started = time.monotonic()
                ours, our_norms = train_octet(args, model, work / "tokens.bin", size, flags, work,
                                              f"{family}-{seed}-{precision}")
                row = compare(ours, losses, step_limit, mean_limit)
                missed += not row["passed"]
                from_fp32 = ""
                if kind != "fp32" and "fp32" in references:
                    exact = references["fp32"][0]
                    parts = [compare(curve, exact, math.inf, None)["largest"] for curve in (ours, losses)]
                    row["octet_from_fp32"], row["torch_from_fp32"] = parts
                    from_fp32 = "{:.3f} % / {:.3f} %".format(*parts)
                results.append(row | {"model": family, "seed": seed, "precision": precision, "reference": kind,
                                      "octet": ours, "torch": losses, "octet_grad_norm": our_norms,
                                      "torch_grad_norm": norms, "octet_seconds": time.monotonic() - started})
                name = precision if precision in ("fp32", "bf16") else f"fp8 {precision}"
                print(f"| {family} | {seed} | {name} | {'bf16 autocast' if kind == 'bf16' else kind} | {losses[0]:.4f} | "
                      f"{ours[-1]:.4f} / {losses[-1]:.4f} | {row['largest']:.5f} % ({row['largest_at_step']}) | "
                      f"{step_limit} % | {row['mean_of_last']:+.5f} % | {f'{mean_limit} %' if mean_limit else ''} | "
                      f"{from_fp32} | {'ok' if row['passed'] else 'MISSED'} |", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    print(f"{len(results) - missed} of {len(results)} within their limits")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
