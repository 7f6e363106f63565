#!/usr/bin/env python3
"""Writes the model and the golden log-likelihoods of tests/golden/eval_tasks, for tests of 'octet eval --task'.

The questions there were written for octet. This script makes a tiny tokenizer (byte-level BPE of their words) and a tiny
random GPT-2, then scores the questions with EleutherAI's lm-evaluation-harness through scripts/compare_lm_eval.py,
without examples (golden_0.json) and with two (golden_2.json).

usage: scripts/make_eval_goldens.py [--octet build/release/octet] [--goldens_only]
Needs lm_eval (0.4.13), torch, transformers and tokenizers.
"""
import argparse
import pathlib
import subprocess
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/golden/eval_tasks"
TASKS = ["hellaswag", "arc_easy", "piqa", "winogrande", "mmlu", "multiple_choice"]
END = "<|endoftext|>"


def make_model(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train([str(FOLDER / f"{task}.jsonl") for task in TASKS], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)
    torch.manual_seed(7)
    # Fewer positions than the longest prompts have tokens: they are cut.
    config = GPT2Config(vocab_size=400, n_embd=16, n_layer=2, n_head=2, n_positions=96, initializer_range=0.3,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--goldens_only", action="store_true")
    options = parser.parse_args()
    model = FOLDER / "model"
    if not options.goldens_only:
        make_model(model)
        (model / "generation_config.json").unlink(missing_ok=True)
    differs = False
    for examples in (0, 2):
        command = [sys.executable, str(ROOT / "scripts/compare_lm_eval.py"), "--octet", options.octet, "--model",
                   str(model), "--golden", str(FOLDER / f"golden_{examples}.json")]
        for task in TASKS:
            command += ["--task", f"{task}={FOLDER / task}.jsonl"]
        if examples:
            command += ["--num_fewshot", str(examples), "--fewshot_dataset", "self"]
        differs |= subprocess.run(command).returncode != 0
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
