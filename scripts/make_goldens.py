#!/usr/bin/env python3
"""Writes tests/golden/models/<name>.safetensors: what Hugging Face Transformers computes for small random models.

Each file holds the weights, one batch, and what the reference computes from them: logits, loss, gradients, and the losses
and gradient norms of five AdamW steps. tests/golden/README.md describes the contents.

The reference runs in float64 from start to end. Transformers forces float32 in three places (RMSNorm, the softmax of
Llama and its followers, the rotary tables); DoublePrecision below changes those to float64 while running the library's own code.
So the stored values are exact to float32 rounding, and a test's tolerance measures only the program under test.

    make_goldens.py [--out tests/golden/models]       write the files, print fp32-vs-fp64 differences
    make_goldens.py --check                           recompute and compare with the stored files, write nothing

Needs: torch, transformers, safetensors, numpy (versions that made the stored files: tests/golden/README.md).
"""
import argparse
import contextlib
import functools
import json
import math
import pathlib
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

BATCH, SEQ = 2, 16
STEPS = 5
OPTIMIZER = {
    "learning_rate": 1e-3,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}
CHECK_TOLERANCE = 1e-6  # --check: ||a-b||/||b||; other library versions and CPUs differ only by float32 rounding

GATED = {  # what Llama and those that follow it share
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA = GATED | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
}
QWEN2 = GATED | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    # Published files say 1e6. With head_dim 8 that leaves some gradients of k_proj.bias within float32 noise, and Adam
    # magnifies the noise. 1000 differs from the default as well and keeps five steps reproducible in float32.
    "rope_theta": 1000.0,
    "use_sliding_window": False,
}
# Heads are wider than hidden_size / num_attention_heads. rope_theta as for Qwen2.
QWEN3 = GATED | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000.0,
    "use_sliding_window": False,
}
MISTRAL = GATED | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
}
# Spelled as published config.json files are (rope_theta and rope_scaling at the top level).
CONFIGS = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": 101,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": None,
        "n_positions": 24,  # longer than the sequence: the last rows must get no gradient
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "llama_untied": LLAMA | {"vocab_size": 101, "rope_theta": 10000.0, "tie_word_embeddings": False},
    # head_dim 8 gives wavelengths 6.3, 29.7, 140, 664; with 64 original positions and factors 1 and 4 the first is
    # kept (< 16), the second interpolated, the last two divided by 8 (> 64).
    "llama_rope_scaled": LLAMA
    | {
        "vocab_size": 96,
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    },
    "qwen2_tied": QWEN2 | {"vocab_size": 101, "tie_word_embeddings": True},
    "qwen2_untied": QWEN2 | {"vocab_size": 97, "tie_word_embeddings": False},
    "qwen3_tied": QWEN3 | {"vocab_size": 101, "tie_word_embeddings": True},
    "mistral_window": MISTRAL | {"vocab_size": 97, "sliding_window": 5, "tie_word_embeddings": False},
}


class DoublePrecision(TorchFunctionMode):
    """Turns every request for float32 into one for float64, so that library code with explicit casts stays exact."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def lift(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*[lift(a) for a in args], **{k: lift(v) for k, v in (kwargs or {}).items()})


@contextlib.contextmanager
def computing_in(dtype: torch.dtype):
    torch.set_default_dtype(dtype)
    try:
        with DoublePrecision() if dtype == torch.float64 else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def build_model(config: dict, dtype: torch.dtype):
    # A copy: Transformers rewrites nested dictionaries in place.
    hf_config = AutoConfig.for_model(**json.loads(json.dumps(config)))
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
        if hasattr(hf_config, name):
            setattr(hf_config, name, 0.0)
    hf_config.use_cache = False
    model = AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager", dtype=dtype)
    assert all(p.dtype == dtype for p in model.parameters())
    return model.train(), hf_config


def is_decayed(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and not name.endswith("wpe.weight")


def random_weights(model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """float32 values: matrices ~ N(0, 0.2), biases ~ N(0, 0.2), norm gains ~ N(1, 0.2). Wide enough that attention is
    far from uniform, that the nonlinearities bend, and that a forgotten bias or gain shows."""
    weights = {}
    for name, parameter in model.named_parameters():
        values = 0.2 * rng.standard_normal(tuple(parameter.shape))
        if parameter.dim() == 1 and not name.endswith("bias"):
            values += 1.0
        weights[name] = values.astype(np.float32)
    return weights


def make_batch(vocab: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    stream = rng.integers(0, vocab, size=(BATCH, SEQ + 1), dtype=np.int32)
    tokens, targets = stream[:, :-1].copy(), stream[:, 1:].copy()
    tokens[0, 3], tokens[1, 5] = vocab - 1, 0  # the edges of the embedding
    targets[0, 7] = vocab - 1
    tokens[1, 9] = tokens[1, 2]  # a repeated token: its embedding gradient is a sum
    for row, column in ((0, 0), (0, 11), (1, 4), (1, 14), (1, 15)):
        targets[row, column] = -1  # ignored
    return tokens, targets


def loaded_model(config: dict, weights: dict, dtype: torch.dtype):
    model, _ = build_model(config, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    return model


def train(model, parameters: dict, tokens: np.ndarray, targets: np.ndarray) -> dict:
    """Five AdamW steps on one batch. `parameters` are those that are trained, by the names of their gradients."""
    ids, labels = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()
    dtype = next(iter(parameters.values())).dtype

    def forward():
        logits = model(input_ids=ids).logits
        assert logits.dtype == dtype
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)

    decayed = [p for n, p in parameters.items() if is_decayed(n, p)]
    plain = [p for n, p in parameters.items() if not is_decayed(n, p)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=OPTIMIZER["learning_rate"],
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_epsilon"],
    )
    result, losses, norms = {}, [], []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        logits, loss = forward()
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach().numpy().copy()
            result["loss"] = loss.detach().numpy().copy()
            for name, parameter in parameters.items():
                result["grads." + name] = parameter.grad.numpy().copy()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER["max_grad_norm"]).item())
        optimizer.step()
    losses.append(forward()[1].item())
    result["losses"], result["grad_norms"] = np.array(losses), np.array(norms)
    return result


def run_reference(config: dict, weights: dict, tokens: np.ndarray, targets: np.ndarray, dtype: torch.dtype) -> dict:
    with computing_in(dtype):
        model = loaded_model(config, weights, dtype)
        return train(model, dict(model.named_parameters()), tokens, targets)


def reference64(config, weights, tokens, targets) -> dict:
    return run_reference(config, weights, tokens, targets, torch.float64)


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    norm = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / norm) if norm > 0 else float(np.linalg.norm(a))


def report_fp32(name: str, exact: dict, single: dict) -> None:
    grads = {k: relative_error(single[k], exact[k]) for k in exact if k.startswith("grads.")}
    worst = max(grads, key=grads.get)
    print(
        f"{name}: loss {exact['losses'][0]:.6f} -> {exact['losses'][-1]:.6f}, |logit| rms "
        f"{np.sqrt(np.mean(exact['logits'] ** 2)):.2f}, norms {exact['grad_norms'].round(3)}\n"
        f"  fp32 vs fp64, relative: logits {relative_error(single['logits'], exact['logits']):.1e}, "
        f"grads max {grads[worst]:.1e} ({worst}), loss {relative_error(single['loss'], exact['loss']):.1e}, "
        f"losses max {np.max(np.abs(single['losses'] / exact['losses'] - 1)):.1e}, "
        f"grad_norms max {np.max(np.abs(single['grad_norms'] / exact['grad_norms'] - 1)):.1e}"
    )


def check_rope_regimes(config: dict, exact: dict, weights: dict, tokens: np.ndarray, targets: np.ndarray) -> None:
    """The scaled file is useful only if every regime occurs and the scaling changes the logits."""
    scaling = config["rope_scaling"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    wavelengths = [2 * math.pi * config["rope_theta"] ** (2 * i / head_dim) for i in range(head_dim // 2)]
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    regimes = ["kept" if w < high else "scaled" if w > low else "interpolated" for w in wavelengths]
    assert set(regimes) == {"kept", "interpolated", "scaled"}, regimes
    plain = {k: v for k, v in config.items() if k != "rope_scaling"}
    moved = relative_error(reference64(plain, weights, tokens, targets)["logits"], exact["logits"])
    assert moved > 1e-2, moved
    print(f"  rope: {list(zip(np.round(wavelengths, 1).tolist(), regimes))}; without scaling logits move by {moved:.2f}")


def check_window(config: dict, exact: dict, weights: dict, tokens: np.ndarray, targets: np.ndarray) -> None:
    """The windowed file is useful only if the window changes the logits, from its first token outside on."""
    plain = reference64(config | {"sliding_window": None}, weights, tokens, targets)["logits"]
    window = config["sliding_window"]
    assert relative_error(plain[:, :window], exact["logits"][:, :window]) < 1e-12
    moved = relative_error(plain[:, window], exact["logits"][:, window])
    assert moved > 1e-2, moved
    print(f"  window {window}: without it the logits of position {window} move by {moved:.2f}, earlier ones not at all")


def describe(config: dict) -> dict[str, str]:
    metadata = {"family": config["model_type"], "config": json.dumps(config, indent=2)}
    return metadata | {key: repr(value) for key, value in OPTIMIZER.items()}


def make_golden(name: str, config: dict) -> tuple[dict, dict]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    model, hf_config = build_model(config, torch.float32)
    weights = random_weights(model, rng)
    tokens, targets = make_batch(config["vocab_size"], rng)

    exact = reference64(config, weights, tokens, targets)
    single = run_reference(config, weights, tokens, targets, torch.float32)
    assert all(v.dtype == np.float64 for v in exact.values())
    report_fp32(name, exact, single)
    if "rope_scaling" in config:
        check_rope_regimes(config, exact, weights, tokens, targets)

    if config.get("sliding_window"):
        check_window(config, exact, weights, tokens, targets)

    tensors = {"tokens": tokens, "targets": targets}
    tensors |= {"weights." + n: w for n, w in weights.items()}
    tensors |= {n: np.asarray(v, np.float32) for n, v in exact.items()}
    metadata = describe(config) | {
        # The same model as Transformers 5 itself writes it, with rope_parameters: a reader must accept both spellings.
        "config_transformers5": hf_config.to_json_string(use_diff=True),
        "no_decay": json.dumps([n for n, p in model.named_parameters() if not is_decayed(n, p)]),
    }
    return tensors, metadata


def write_file(path: pathlib.Path, tensors: dict, metadata: dict) -> None:
    """save_file, then the header's metadata sorted: the library orders it at random, and files should reproduce."""
    save_file(tensors, path, metadata=metadata)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    path.chmod(0o644)


def check_file(path: pathlib.Path, tensors: dict, metadata: dict) -> list[str]:
    faults = []
    with safe_open(path, "numpy") as stored:
        if json.loads(stored.metadata()["config"]) != json.loads(metadata["config"]):
            faults.append(f"{path.name}: config differs")
        if set(stored.keys()) != set(tensors):
            faults.append(f"{path.name}: tensor names differ: {sorted(set(stored.keys()) ^ set(tensors))}")
        for key in set(stored.keys()) & set(tensors):
            error = relative_error(stored.get_tensor(key), tensors[key])
            if not error <= CHECK_TOLERANCE:
                faults.append(f"{path.name}: {key} differs by {error:.1e}, allowed {CHECK_TOLERANCE:.0e}")
    return faults


def run_script(description: str, folder: str, makers: dict) -> int:
    """The command line. `makers` give the tensors and the metadata of each file of tests/golden/<folder>."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_out = pathlib.Path(__file__).resolve().parent.parent / "tests/golden" / folder
    parser.add_argument("--out", type=pathlib.Path, default=default_out)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--models", nargs="+", choices=makers, default=list(makers), metavar="NAME")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    faults = []
    for name in args.models:
        tensors, metadata = makers[name]()
        path = args.out / f"{name}.safetensors"
        if args.check:
            faults += check_file(path, tensors, metadata)
        else:
            args.out.mkdir(parents=True, exist_ok=True)
            write_file(path, tensors, metadata)
            print(f"  wrote {path.name}: {path.stat().st_size} bytes")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    files = {name: functools.partial(make_golden, name, config) for name, config in CONFIGS.items()}
    sys.exit(run_script(__doc__, "models", files))
