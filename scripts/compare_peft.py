#!/usr/bin/env python3
"""Compares octet's LoRA adapters with PEFT + Transformers, on the CPU in fp32.

    scripts/compare_peft.py [--octet build/release/octet] [--models llama qwen2 gpt2] [--cases NAME...]
                            [--work DIR]

Small models with random weights are made by Transformers, and adapters with random A and B by PEFT: on all modules, on
the attention alone, with rsLoRA, with rank_pattern and alpha_pattern, on some layers, with a regular expression as
target, and with BF16 tensors. For each pair:
  logits        octet generate of base and adapter against PEFT, and of the adapter folder alone
  greedy ids    24 tokens, equal
  adapter       written again by octet export --adapter and loaded by PEFT: every tensor equal, logits equal
  merged        written by octet export --merge and loaded by Transformers: logits, also rounded to BF16 against PEFT's
                merge_and_unload() of the BF16 base: at most one unit in the last place
  trained       five AdamW steps in octet train and in PyTorch, both from the adapter: losses, and every A and B; the
                checkpoint of octet in PEFT: logits (only for some cases)
Differences of losses are relative, those of A and B are norms relative to the norm of the tensor. Relative to the change
that training made, their limit is 1e-3: AdamW divides every gradient by its own size, so the rounding errors of tiny
gradients count as much as large ones. Differences of logits are relative to the largest logit; the limit is 1e-5. The
exit code is 1 when a limit is missed.
Needs torch, transformers, peft, safetensors and numpy; runs without a network.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import numpy
    import torch
    import torch.nn.functional as F
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                              Qwen2Config, Qwen2ForCausalLM)
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"the Python package `{error.name}` is missing: pip install torch transformers peft safetensors numpy")

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1e-5
VOCAB = 320
PROMPT = [5, 17, 300, 42, 8, 8, 101, 250, 3, 77, 12, 199]

MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.1)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.1)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        initializer_range=0.1, bos_token_id=0, eos_token_id=0)),
}

# Settings of PEFT by the name of the case, for Llama and Qwen, and for GPT-2.
CASES = {
    "all": ({"target_modules": "all-linear"}, None),
    "attention": ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": ["c_attn"]}),
    "default targets": ({}, None),
    "rslora": ({"target_modules": "all-linear", "use_rslora": True}, None),
    "patterns": ({"target_modules": "all-linear", "rank_pattern": {"layers.1.mlp.up_proj": 3, "q_proj": 2},
                  "alpha_pattern": {"down_proj": 7, "o_proj": 1}},
                 {"target_modules": "all-linear", "rank_pattern": {"h.1.mlp.c_proj": 3, "c_attn": 2},
                  "alpha_pattern": {"mlp.c_proj": 7, "c_fc": 1}}),
    "layers": ({"target_modules": ["q_proj", "gate_proj"], "layers_to_transform": [0, 2]},
               {"target_modules": ["attn.c_proj"], "layers_to_transform": [1]}),
    "regex": ({"target_modules": r".*\.(0|2)\.self_attn\.(k|o)_proj"}, {"target_modules": r".*\.1\.mlp\.c_.*"}),
    "bf16": ({"target_modules": "all-linear"}, None),
}


def settings_of(case, family):
    both = CASES[case]
    chosen = both[1] if family == "gpt2" and both[1] is not None else both[0]
    return {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **chosen}


def make_adapter(base, case, family, folder):
    """A PEFT folder with random A and B, large enough to change every logit."""
    torch.manual_seed(sum(map(ord, case + family)))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
                           LoraConfig(**settings_of(case, family)))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) * 0.2
            if case == "bf16":
                parameter.data = parameter.data.bfloat16()
    model.save_pretrained(folder)


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([PROMPT])).logits[0].float()


def greedy_ids(model, count):
    with torch.no_grad():
        ids = model.eval().generate(torch.tensor([PROMPT]), max_new_tokens=count, do_sample=False, pad_token_id=0,
                                    attention_mask=torch.ones(1, len(PROMPT)), eos_token_id=None)
    return ids[0].tolist()


class Octet:
    def __init__(self, program):
        self.program = program

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"octet {' '.join(map(str, arguments))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def generate(self, *arguments):
        return self.run("generate", *arguments, "--device", "cpu", "--mixed_precision", "fp32", "--prompt_ids",
                        " ".join(map(str, PROMPT)))

    def logits(self, *arguments):
        return torch.tensor(json.loads(self.generate(*arguments, "--print_logits"))["logits"])

    def ids(self, count, *arguments):
        text = self.generate(*arguments, "--print_ids", "--ignore_eos", "--max_new_tokens", count)
        return list(map(int, text.split()))


class Report:
    def __init__(self):
        self.failed = False

    def row(self, name, check, value, passed):
        self.failed |= not passed
        print(f"{name:24} {check:34} {value:>12} {'ok' if passed else 'FAILED'}", flush=True)

    def logits(self, name, check, ours, theirs):
        difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        self.row(name, check, f"{difference:.1e}", difference <= LIMIT)


def largest_step(ours, theirs):
    """The largest difference of two BF16 tensors in units of the last place."""
    order = lambda x: torch.where(x.view(torch.int16) < 0, -(x.view(torch.int16).int() & 0x7FFF), x.view(torch.int16).int())
    return (order(ours) - order(theirs)).abs().max().item()


def compare_merged_bf16(octet, report, name, work, base, adapter):
    """A BF16 base: octet rounds W + s B A once, and so does PEFT."""
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(work / "base16")
    octet.run("export", work / "base16", "--adapter_name_or_path", adapter, "--merge", "--output", work / "merged16")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(work / "base16", dtype=torch.bfloat16), adapter)
    theirs = theirs.merge_and_unload().state_dict()
    ours = load_file(work / "merged16" / "model.safetensors")
    steps = max(largest_step(tensor, theirs[key]) for key, tensor in ours.items())
    different = sum((tensor != theirs[key]).sum().item() for key, tensor in ours.items())
    total = sum(tensor.numel() for tensor in ours.values())
    report.row(name, "merged into BF16: last places", steps, steps <= 1)
    report.row(name, "merged into BF16: different weights", f"{different / total:.1e}", different <= 1e-3 * total)


ROWS, LENGTH, STEPS = 4, 32, 5
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-8,
             "max_grad_norm": 1.0}


def train_torch(model, tokens):
    """octet's data_order sequential: adjacent windows, each with the token that follows it."""
    parameters = [p for name, p in model.named_parameters() if "lora_" in name]
    for p in model.parameters():
        p.requires_grad_(False)
    for p in parameters:
        p.requires_grad_(True)
    optimizer = torch.optim.AdamW(parameters, lr=OPTIMIZER["learning_rate"], weight_decay=OPTIMIZER["weight_decay"],
                                  betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]), eps=OPTIMIZER["adam_epsilon"])
    losses = []
    for step in range(STEPS):
        starts = [(step * ROWS + row) * LENGTH for row in range(ROWS)]
        both = torch.from_numpy(numpy.stack([tokens[start:start + LENGTH + 1] for start in starts]).astype(numpy.int64))
        loss = F.cross_entropy(model.train()(both[:, :-1]).logits.flatten(0, 1), both[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        # Without the 1e-6 that clip_grad_norm_ adds to the norm.
        gradients = [p.grad for p in parameters]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        torch._foreach_mul_(gradients, torch.clamp(OPTIMIZER["max_grad_norm"] / norm, max=1.0))
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_training(octet, report, name, work, base, adapter):
    tokens = numpy.random.default_rng(3).integers(0, VOCAB, ROWS * LENGTH * STEPS + 1).astype(numpy.uint16)
    tokens.tofile(work / "tokens.bin")
    flags = [part for key, value in OPTIMIZER.items() for part in (f"--{key}", value)]
    octet.run("train", "--model_name_or_path", base, "--adapter_name_or_path", adapter, "--finetuning_type", "lora",
              "--dataset", work / "tokens.bin", "--tokenizer", "bytes", "--data_order", "sequential", "--eval_split", "0",
              "--eval_steps", "0", "--max_steps", STEPS, "--max_seq_length", LENGTH, "--per_device_train_batch_size", ROWS,
              "--lr_scheduler_type", "constant", "--warmup_steps", "0", "--logging_steps", "1", "--use_tensorboard",
              "false", "--sample_steps", "0", "--progress", "quiet", "--device", "cpu", "--mixed_precision", "fp32",
              "--output_dir", work / "runs", "--run_name", "run", *flags)
    with open(work / "runs/run/metrics.jsonl") as file:
        ours = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    theirs = train_torch(peft, tokens)
    difference = max(abs(a - b) / b for a, b in zip(ours, theirs)) if len(ours) == STEPS else float("inf")
    report.row(name, f"losses of {STEPS} steps", f"{difference:.1e}", difference <= LIMIT)

    checkpoint = work / f"runs/run/checkpoints/step_{STEPS}"
    peft.save_pretrained(work / "trained")
    before, after, reference = (load_file(folder / "adapter_model.safetensors")
                                for folder in (adapter, checkpoint, work / "trained"))
    norm = torch.linalg.vector_norm
    worst = max((norm(after[key] - reference[key]) / norm(reference[key])).item() for key in reference)
    report.row(name, f"A and B after {STEPS} steps", f"{worst:.1e}", worst <= LIMIT and after.keys() == reference.keys())
    worst = max((norm(after[key] - reference[key]) / norm(reference[key] - before[key])).item() for key in reference)
    report.row(name, f"changes of A and B in {STEPS} steps", f"{worst:.1e}", worst <= 1e-3)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), checkpoint)
    report.logits(name, "checkpoint of octet in PEFT", octet.logits(work / "runs/run"), logits_of(loaded))


def compare(octet, report, family, case, base, work):
    name = f"{family}, {case}"
    adapter = work / "adapter"
    make_adapter(base, case, family, adapter)
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    expected = logits_of(peft)
    plain = logits_of(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    moved = ((expected - plain).abs().max() / plain.abs().max()).item()
    report.row(name, "the adapter changes the logits", f"{moved:.1e}", moved > 1e-2)

    report.logits(name, "base and adapter", octet.logits(base, "--adapter_name_or_path", adapter), expected)
    report.logits(name, "adapter folder alone", octet.logits(adapter), expected)
    same = octet.ids(24, adapter) == greedy_ids(peft, 24)
    report.row(name, "greedy ids", "equal" if same else "different", same)

    octet.run("export", adapter, "--adapter", "--output", work / "written")
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, work / "written"))
    same = before.keys() == after.keys() and all(torch.equal(before[key].float(), after[key]) for key in before)
    report.row(name, "exported adapter: tensors", "equal" if same else "different", same)
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), work / "written")
    report.logits(name, "exported adapter in PEFT", logits_of(again), expected)
    report.logits(name, "exported adapter in octet", octet.logits(work / "written"), expected)

    octet.run("export", base, "--adapter_name_or_path", adapter, "--merge", "--output", work / "merged")
    merged = AutoModelForCausalLM.from_pretrained(work / "merged", dtype=torch.float32)
    report.logits(name, "merged model in Transformers", logits_of(merged), expected)
    if case in ("all", "rslora"):
        compare_merged_bf16(octet, report, name, work, base, adapter)
    if case in ("all", "patterns", "attention"):
        compare_training(octet, report, name, work, base, adapter)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--work", help="folder for models and adapters; default: a temporary one")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    report = Report()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(args.work or temporary).absolute()
        for family in args.models:
            torch.manual_seed(1)
            base = work / family / "base"
            MODELS[family]().save_pretrained(base)
            for case in args.cases:
                folder = work / family / case.replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                compare(Octet(args.octet), report, family, case, base, folder)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
