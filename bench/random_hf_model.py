#!/usr/bin/env python3
"""Writes a Hugging Face folder with random weights, to measure how fast a run starts from one.

  python3 bench/random_hf_model.py --size 1b --dtype BF16 --tokenizer tokenizer.json FOLDER
"""

import argparse
import json
import math
import random
import shutil
import struct
from pathlib import Path

SIZES = {  # width, layers, heads, key and value heads, feed-forward width, tied head
    "tiny": (64, 2, 4, 2, 128, True),
    "1b": (2048, 16, 32, 8, 8192, True),
    "8b": (4096, 32, 32, 8, 14336, False),
}
VOCABULARY = 128256
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def tensors(width, layers, heads, kv_heads, ffn, tied):
    kv = width // heads * kv_heads
    yield "model.embed_tokens.weight", [VOCABULARY, width]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [width]
        yield prefix + "self_attn.q_proj.weight", [width, width]
        yield prefix + "self_attn.k_proj.weight", [kv, width]
        yield prefix + "self_attn.v_proj.weight", [kv, width]
        yield prefix + "self_attn.o_proj.weight", [width, width]
        yield prefix + "post_attention_layernorm.weight", [width]
        yield prefix + "mlp.gate_proj.weight", [ffn, width]
        yield prefix + "mlp.up_proj.weight", [ffn, width]
        yield prefix + "mlp.down_proj.weight", [width, ffn]
    yield "model.norm.weight", [width]
    if not tied:
        yield "lm_head.weight", [VOCABULARY, width]


def random_block(dtype, size):
    """Small finite numbers: the bytes are random but for the one that holds sign and exponent."""
    block = bytearray(random.Random(1).randbytes(size))
    step = ELEMENT_BYTES[dtype]
    small = {"F32": (0x3C, 0xBC), "BF16": (0x3C, 0xBC), "F16": (0x20, 0xA0)}[dtype]
    block[step - 1::step] = bytes(block[step - 1::step]).translate(bytes(small[i & 1] for i in range(256)))
    return bytes(block)


def write_file(path, named, dtype):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in named:
        begin, end = end, end + math.prod(shape) * ELEMENT_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = random_block(dtype, 64 << 20)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, end, len(block)):
            file.write(block[:end - begin])
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--dtype", choices=ELEMENT_BYTES, default="BF16")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to copy into the folder")
    options = parser.parse_args()
    width, layers, heads, kv_heads, ffn, tied = SIZES[options.size]
    options.folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": width // heads, "intermediate_size": ffn, "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "initializer_range": 0.02, "torch_dtype": "bfloat16", "bos_token_id": 128000,
        "eos_token_id": 128001, "attention_bias": False, "mlp_bias": False,
    }
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    named = list(tensors(width, layers, heads, kv_heads, ffn, tied))
    size = write_file(options.folder / "model.safetensors", named, options.dtype)
    if options.tokenizer:
        shutil.copyfile(options.tokenizer, options.folder / "tokenizer.json")
    print(f"{options.folder}: {size / 1e9:.2f} GB of {options.dtype}")


if __name__ == "__main__":
    main()
