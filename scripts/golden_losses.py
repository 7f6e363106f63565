#!/usr/bin/env python3
"""Prints the losses and weights of short runs over all families, recipes and recompute levels. Use it for a change that
must not alter results: run it with the program before and after, on one machine, and compare the two outputs.

    scripts/golden_losses.py build/release/octet > before.txt
    ...
    scripts/golden_losses.py build/release/octet | diff before.txt -

The bits may depend on the CPU and the compiler, so they are not stored in the repository.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

PRESETS = ["gpt2-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny", "mistral-tiny"]
NUMERICS = {
    "fp32": "--mixed_precision fp32",
    "bf16": "--mixed_precision bf16",
    "bf16-small": "--mixed_precision bf16 --optimizer_state fp8 --master_weights stochastic",
    "bf16-compact": "--mixed_precision bf16 --master_weights compact",
    "delayed-compact": "--mixed_precision fp8 --optimizer_state fp8 --master_weights compact",
    "delayed": "--mixed_precision fp8",
    "delayed-head": "--mixed_precision fp8 --fp8_head all --fp8_format e4m3 --fp8_interval 2",
    "delayed-gradients": "--mixed_precision fp8 --fp8_head backward",
    "block-gradients": "--mixed_precision fp8 --fp8_recipe block --fp8_head backward --fp8_skip_layers layers.*",
    "current": "--mixed_precision fp8 --fp8_recipe current --optimizer_state bf16",
    "block": "--mixed_precision fp8 --fp8_recipe block",
    "mxfp8-head": "--mixed_precision fp8 --fp8_recipe mxfp8 --fp8_head all",
    "lora-bf16": "--mixed_precision bf16 --finetuning_type lora --lora_rank 8 --lora_dropout 0.1",
    "lora-delayed": "--mixed_precision fp8 --finetuning_type lora --lora_rank 8 --frozen_copies one",
    "lora-block": "--mixed_precision fp8 --fp8_recipe block --finetuning_type lora --lora_rank 64",
}
LEVELS = ["none", "act", "mlp", "block"]
TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}, said the {i % 13}th of them.\n" for i in range(3000))


def run(octet: str, folder: pathlib.Path, name: str, flags: list[str]) -> str:
    result = subprocess.run([octet, "train", "--device", "cpu", "--output_dir", str(folder), "--run_name", name,
                             "--max_steps", "3", "--per_device_train_batch_size", "2", "--max_seq_length", "64",
                             "--gradient_accumulation_steps", "2", "--eval_batches", "2", "--progress", "plain",
                             "--use_tensorboard", "false", "--save_async", "false", *flags],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{name}: exit code {result.returncode}\n{result.stderr}")
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    numbers = [float(line[key]).hex() for line in lines for key in ("loss", "grad_norm", "eval_loss") if key in line]
    digest = hashlib.sha256()
    for file in sorted((folder / name).rglob("*")):
        if file.suffix == ".safetensors" or file.name == "fp8_state.bin":
            digest.update(file.read_bytes())
    return " ".join(numbers) + " " + digest.hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet", help="the program")
    octet = parser.parse_args().octet
    if not shutil.which(octet):
        parser.error(f"there is no program {octet}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(TEXT)
        documents = folder / "documents.jsonl"
        documents.write_text("".join(json.dumps({"text": TEXT[i:i + 20 + i % 90]}) + "\n" for i in range(0, 40000, 110)))
        for preset in PRESETS:
            for label, flags in NUMERICS.items():
                for level in LEVELS:
                    for data in ([folder / "text.txt", documents] if level == "none" else [folder / "text.txt"]):
                        case = f"{preset}_{label}_{level}_{data.stem}"
                        settings = flags.split() + ["--model_preset", preset, "--gradient_checkpointing", level,
                                                    "--dataset", str(data), "--cache_dir", str(folder / "cache")]
                        print(case, run(octet, folder, case, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
