#!/usr/bin/env python3
"""Reads GGUF files with the `gguf` package and compares them with the Hugging Face folders that they were made from.

usage: scripts/check_gguf.py FILE.gguf FOLDER [FILE.gguf FOLDER ...]

Checked: every tensor has the name that the package gives the tensor of the folder, its shape and exactly its values (as
f32, f16, bf16 or q8_0 by the package's own conversion, rows of queries and keys reordered for Llama), there is no other
tensor but the factors of scaled rotary frequencies; the keys of the architecture; and, if the folder has a
tokenizer.json, tokens, merges, kinds of tokens and special ids. Exits 1 if something differs, 77 without the packages.
"""
import json
import math
import pathlib
import struct
import sys

try:
    import gguf
    import numpy as np
except ImportError as error:
    print(f"the Python package `{error.name}` is missing: pip install gguf")
    sys.exit(77)

ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def read_safetensors(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            raw = data[begin:end]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def reorder(weight, heads):
    """Neighbouring rows of a head turn together in llama.cpp, and rows half a head apart in Transformers."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def expected_tensors(config, folder):
    kind = config["model_type"]
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], layers)
    result = {}
    for name, values in read_safetensors(folder).items():
        if name.endswith((".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")):
            continue
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, f"the gguf package has no name for {name}"
        if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = values.T
        heads = config.get("num_attention_heads")
        if kind in ("llama", "mistral") and name.endswith("q_proj.weight"):
            values = reorder(values, heads)
        if kind in ("llama", "mistral") and name.endswith("k_proj.weight"):
            values = reorder(values, config.get("num_key_value_heads", heads))
        result[new] = values
    return result


def rope_factors(config):
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta") or scaling.get("rope_theta")
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    factors = []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * theta ** (i / head)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling["factor"])
        else:
            smooth = ((scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"])
                      / (scaling["high_freq_factor"] - scaling["low_freq_factor"]))
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


class Check:
    def __init__(self, path):
        self.path, self.faults, self.reader = path, [], gguf.GGUFReader(path)

    def equal(self, what, found, wanted):
        if found != wanted:
            self.faults.append(f"{what} is {found!r}, expected {wanted!r}")

    def key(self, name):
        field = self.reader.get_field(name)
        return None if field is None else field.contents()

    def tensors(self, config, folder):
        wanted = expected_tensors(config, folder)
        found = {tensor.name: tensor for tensor in self.reader.tensors}
        factors = rope_factors(config)
        if factors is not None and "rope_freqs.weight" in found:
            stored = found.pop("rope_freqs.weight").data
            if stored.shape != factors.shape or not np.allclose(stored, factors, rtol=1e-6):
                self.faults.append(f"rope_freqs.weight is {stored}, expected {factors}")
        elif factors is not None:
            self.faults.append("rope_freqs.weight is missing")
        self.equal("names of tensors", sorted(found), sorted(wanted))
        for name in found.keys() & wanted.keys():
            tensor, values = found[name], np.ascontiguousarray(wanted[name], dtype=np.float32)
            if list(tensor.shape) != list(values.shape)[::-1]:
                self.faults.append(f"{name} has shape {list(tensor.shape)}, expected {list(values.shape)[::-1]}")
                continue
            stored = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            exact = gguf.quants.dequantize(gguf.quants.quantize(values, tensor.tensor_type), tensor.tensor_type)
            if not np.array_equal(stored.reshape(values.shape), exact.reshape(values.shape)):
                self.faults.append(f"{name} ({tensor.tensor_type.name}) has other values")
        return sorted({tensor.tensor_type.name for tensor in found.values()})

    def keys(self, config):
        arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
        self.equal("general.architecture", self.key("general.architecture"), arch)
        gpt2 = config["model_type"] == "gpt2"
        heads = config["n_head" if gpt2 else "num_attention_heads"]
        width = config["n_embd" if gpt2 else "hidden_size"]
        wanted = {
            gguf.Keys.LLM.BLOCK_COUNT: config["n_layer" if gpt2 else "num_hidden_layers"],
            gguf.Keys.LLM.CONTEXT_LENGTH: config["n_positions" if gpt2 else "max_position_embeddings"],
            gguf.Keys.LLM.EMBEDDING_LENGTH: width,
            gguf.Keys.LLM.FEED_FORWARD_LENGTH: (config.get("n_inner") or 4 * width) if gpt2
            else config["intermediate_size"],
            gguf.Keys.LLM.VOCAB_SIZE: config["vocab_size"],
            gguf.Keys.Attention.HEAD_COUNT: heads,
            gguf.Keys.Attention.HEAD_COUNT_KV: heads if gpt2 else config.get("num_key_value_heads", heads),
        }
        if not gpt2:
            head = config.get("head_dim") or width // heads
            wanted |= {gguf.Keys.Rope.DIMENSION_COUNT: head, gguf.Keys.Attention.KEY_LENGTH: head,
                       gguf.Keys.Attention.VALUE_LENGTH: head}
            theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
            self.equal("rope.freq_base", self.key(f"{arch}.rope.freq_base"), float(np.float32(theta)))
        for name, value in wanted.items():
            name = name.format(arch=arch)
            self.equal(name, self.key(name), value)
        epsilon = gguf.Keys.Attention.LAYERNORM_EPS if gpt2 else gguf.Keys.Attention.LAYERNORM_RMS_EPS
        stored = np.float32(config["layer_norm_epsilon" if gpt2 else "rms_norm_eps"])
        self.equal("epsilon", self.key(epsilon.format(arch=arch)), float(stored))

    def tokenizer(self, config, folder):
        path = pathlib.Path(folder) / "tokenizer.json"
        if not path.exists():
            return
        json_file = json.loads(path.read_text())
        model, added = json_file["model"], json_file["added_tokens"]
        tokens, types = self.key("tokenizer.ggml.tokens"), self.key("tokenizer.ggml.token_type")
        self.equal("number of tokens", len(tokens), config["vocab_size"])
        wanted = {index: token for token, index in model["vocab"].items()}
        wanted |= {token["id"]: token["content"] for token in added}
        for index in range(config["vocab_size"]):
            if index in wanted:
                self.equal(f"token {index}", tokens[index], wanted[index])
            else:
                self.equal(f"kind of token {index}", types[index], int(gguf.TokenType.UNUSED))
        byte_level = not model.get("byte_fallback")
        if byte_level:
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            self.equal("merges", self.key("tokenizer.ggml.merges"), merges)
        self.equal("tokenizer.ggml.model", self.key("tokenizer.ggml.model"), "gpt2" if byte_level else "llama")
        for token in added:
            kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
            if token["content"] == model.get("unk_token"):
                kind = gguf.TokenType.UNKNOWN
            self.equal(f"kind of {token['content']}", types[token["id"]], int(kind))
        for token, index in model["vocab"].items():
            if not byte_level and len(token) == 6 and token.startswith("<0x"):
                self.equal(f"kind of {token}", types[index], int(gguf.TokenType.BYTE))
        config_path = path.with_name("tokenizer_config.json")
        settings = json.loads(config_path.read_text()) if config_path.exists() else {}
        for name in ("bos", "eos"):
            token = settings.get(f"{name}_token")
            if token and not isinstance(token, dict):
                found = self.key(f"tokenizer.ggml.{name}_token_id")
                self.equal(name, tokens[found] if found is not None else None, token)
        if "chat_template" in settings:
            self.equal("chat template", self.key("tokenizer.chat_template"), settings["chat_template"])


def main():
    if len(sys.argv) < 3 or len(sys.argv) % 2 == 0:
        sys.exit(__doc__)
    bad = False
    for path, folder in zip(sys.argv[1::2], sys.argv[2::2]):
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        check = Check(path)
        types = check.tensors(config, folder)
        check.keys(config)
        check.tokenizer(config, folder)
        for fault in check.faults[:10]:
            print(f"{path}: {fault}")
        bad |= bool(check.faults)
        if not check.faults:
            print(f"{path}: {len(check.reader.tensors)} tensors ({', '.join(types)}) and all keys are equal")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
