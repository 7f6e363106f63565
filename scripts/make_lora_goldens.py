#!/usr/bin/env python3
"""Writes tests/golden/lora/<name>.safetensors: what PEFT and Transformers compute for small models with LoRA adapters.

Each file holds the weights of the base, an adapter, one batch, and what the reference computes from them: logits, loss, the
gradients of every A and B, and the losses, gradient norms and trained adapter of five AdamW steps. The base is frozen.
tests/golden/README.md describes the contents.

PEFT saves the adapter to a folder first. The reference loads it from there, so names, shapes and adapter_config.json are
those that PEFT writes, and the values are what PEFT makes of them. The reference runs in float64; see make_goldens.py.

    make_lora_goldens.py [--out tests/golden/lora]    write the files, print fp32-vs-fp64 differences
    make_lora_goldens.py --check                      recompute and compare with the stored files, write nothing

Needs: torch, transformers, peft, safetensors, numpy (versions that made the stored files: tests/golden/README.md).
"""
import functools
import json
import pathlib
import sys
import tempfile
import zlib

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file

from make_goldens import (
    CONFIGS,
    build_model,
    computing_in,
    describe,
    loaded_model,
    make_batch,
    random_weights,
    relative_error,
    report_fp32,
    run_script,
    train,
)

LORA = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
# The base, a name in make_goldens.CONFIGS, and the arguments of LoraConfig.
ADAPTERS = {
    "llama": ("llama_untied", LORA),
    "qwen2": ("qwen2_tied", LORA),
    "gpt2": ("gpt2", LORA | {"fan_in_fan_out": True}),
    "llama_qv_rslora": ("llama_untied", LORA | {"target_modules": ["q_proj", "v_proj"], "use_rslora": True}),
    # Ranks differ inside q, k, v and inside gate, up. PEFT takes the first key that matches, and saves keys in sorted
    # order: k_proj comes before layers.1.self_attn.k_proj, which therefore never counts.
    "qwen2_patterns": (
        "qwen2_tied",
        LORA
        | {
            "rank_pattern": {
                "k_proj": 3,
                "layers.1.self_attn.k_proj": 1,
                "layers.0.self_attn.v_proj": 5,
                r"model\.layers\.\d\.mlp\.(gate|down)_proj": 2,
            },
            "alpha_pattern": {"q_proj": 3.5, "layers.1.mlp.down_proj": 1, "^model.layers.0.self_attn.o_proj": 12},
        },
    ),
}
CONFIG_NAME = "adapter_config.json"


def save_adapter(config: dict, lora: dict, weights: dict, rng: np.random.Generator, folder: pathlib.Path) -> dict:
    """Lets PEFT write the folder of an adapter, and returns its tensors. A and B ~ N(0, 0.2): with the scale 2, the product
    is about as large as the weight."""
    model = get_peft_model(loaded_model(config, weights, torch.float32), LoraConfig(**lora))
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.copy_(torch.from_numpy(0.2 * rng.standard_normal(tuple(parameter.shape))))
    model.save_pretrained(folder)
    # PEFT writes a set as a list, in an order that differs between runs.
    settings = json.loads((folder / CONFIG_NAME).read_text())
    settings["target_modules"].sort()
    write_settings(folder, settings)
    return load_file(folder / "adapter_model.safetensors")


def write_settings(folder: pathlib.Path, settings: dict) -> None:
    (folder / CONFIG_NAME).write_text(json.dumps(settings, indent=2, sort_keys=True))  # as PEFT does


def trainable(model) -> dict:
    """The adapter's parameters by the names that they have in its file, without the name of the adapter."""
    return {n.replace(".default.", "."): p for n, p in model.named_parameters() if p.requires_grad}


def load(config: dict, weights: dict, folder: pathlib.Path, dtype: torch.dtype) -> PeftModel:
    with computing_in(dtype):
        base = loaded_model(config, weights, dtype)
    model = PeftModel.from_pretrained(base, folder, is_trainable=True)  # its files are read as float32
    assert all(p.dtype == dtype for p in model.parameters())
    return model


def run_reference(config: dict, weights: dict, folder, tokens, targets, dtype: torch.dtype) -> dict:
    model = load(config, weights, folder, dtype)
    parameters = trainable(model)
    with computing_in(dtype):
        result = train(model, parameters, tokens, targets)
    return result | {"trained." + n: p.detach().numpy().copy() for n, p in parameters.items()}


def check_settings(config: dict, weights: dict, folder: pathlib.Path, tokens: np.ndarray, exact: dict) -> None:
    """A file is useful only if its adapter and its special settings change the logits."""
    settings = json.loads((folder / CONFIG_NAME).read_text())
    write_settings(folder, settings | {"use_rslora": False, "alpha_pattern": {}})
    model = load(config, weights, folder, torch.float64)
    write_settings(folder, settings)
    ids = torch.from_numpy(tokens).long()
    with computing_in(torch.float64), torch.no_grad():
        plain = model(input_ids=ids).logits.numpy()
        with model.disable_adapter():
            base = model(input_ids=ids).logits.numpy()
    without = relative_error(base, exact["logits"])
    assert without > 0.1, without
    text = f"  without the adapter the logits move by {without:.2f}"
    if settings["use_rslora"] or settings["alpha_pattern"]:
        moved = relative_error(plain, exact["logits"])
        assert moved > 0.1, moved
        text += f", without rsLoRA and alpha_pattern by {moved:.2f}"
    print(text)


def make_golden(name: str, base: str, lora: dict) -> tuple[dict, dict]:
    config = CONFIGS[base]
    rng = np.random.default_rng(zlib.crc32(b"lora/" + name.encode()))
    weights = random_weights(build_model(config, torch.float32)[0], rng)
    tokens, targets = make_batch(config["vocab_size"], rng)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        adapter = save_adapter(config, lora, weights, rng, folder)
        exact = run_reference(config, weights, folder, tokens, targets, torch.float64)
        single = run_reference(config, weights, folder, tokens, targets, torch.float32)
        text = (folder / CONFIG_NAME).read_text()
        assert all(v.dtype == np.float64 for v in exact.values())
        assert {"grads." + n for n in adapter} == {n for n in exact if n.startswith("grads.")}
        report_fp32(name, exact, single)
        trained = max(relative_error(single[n], exact[n]) for n in exact if n.startswith("trained."))
        print(f"  {len(adapter)} tensors; trained max {trained:.1e}")
        check_settings(config, weights, folder, tokens, exact)

    tensors = {"tokens": tokens, "targets": targets}
    tensors |= {"weights." + n: w for n, w in weights.items()}
    tensors |= {"adapters." + n: w for n, w in adapter.items()}
    tensors |= {n: np.asarray(v, np.float32) for n, v in exact.items()}
    return tensors, describe(config) | {"adapter_config": text}


if __name__ == "__main__":
    files = {name: functools.partial(make_golden, name, *adapter) for name, adapter in ADAPTERS.items()}
    sys.exit(run_script(__doc__, "lora", files))
