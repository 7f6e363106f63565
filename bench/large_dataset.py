#!/usr/bin/env python3
"""Writes a prepared dataset of many tokens, to measure how long octet takes to open it.

  python3 bench/large_dataset.py --octet build/release/octet --tokens 10e9 FOLDER

`octet prepare` writes one real shard of bytes (2 bytes per id) with documents of about 700 tokens. The script copies the
shard until the dataset is large enough, and writes the manifest. All copies are real files: 10e9 tokens take 20 GB.
"""

import argparse
import json
import math
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

SHARD_TOKENS = 100 * 2**20


def crc32c(data: bytes) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def sealed(manifest: dict) -> str:
    """The JSON with its own checksum, as docs/formats.md describes it."""
    body = json.dumps(manifest, indent=2)[:-2]
    return f'{body},\n  "manifest_crc32c": "{crc32c(body.encode()):08x}"\n}}\n'


def write_documents(path: Path, tokens: int) -> None:
    """Lengths like those of web pages: most are some hundred tokens, few are very long."""
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(4096)]
    text = " ".join(draw.choices(words, k=2_000_000))
    written = 0
    with open(path, "w") as file:
        while written < tokens:
            length = max(16, min(200_000, int(math.exp(draw.gauss(6.0, 1.05)))))
            begin = draw.randrange(len(text) - length)
            file.write(f'{{"text": "{text[begin:begin + length]}"}}\n')
            written += length + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--octet", default="octet", help="the program")
    parser.add_argument("--tokens", type=float, default=10e9, help="rounded up to whole shards of about 105 million (default: 10e9)")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists already")
    if not shutil.which(options.octet):
        parser.error(f"there is no program {options.octet}: build it, or name it with --octet")
    options.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as temporary:
        documents, one = Path(temporary) / "documents.jsonl", Path(temporary) / "one"
        write_documents(documents, SHARD_TOKENS)
        subprocess.run([options.octet, "prepare", "--dataset", documents, "--output", one, "--tokenizer", "bytes",
                        "--eval_split", "0", "--shard_tokens", str(2 * SHARD_TOKENS)], check=True)
        manifest = json.loads((one / "manifest.json").read_text())
        del manifest["manifest_crc32c"]
        split = manifest["train"]
        (shard,) = split["shards"]
        copies = math.ceil(options.tokens / shard["tokens"])
        split["shards"] = []
        for number in range(copies):
            name = f"train_{number:05d}.octet"
            shutil.copyfile(one / shard["name"], options.folder / name)
            split["shards"].append(
                {**shard, "name": name, "end_example": shard["end_example"] * (number + 1)})
    for key in ("documents", "tokens", "targets", "dropped"):
        split[key] *= copies
    split["lengths"] = [count * copies for count in split["lengths"]]
    manifest["examples"] *= copies
    (options.folder / "manifest.json").write_text(sealed(manifest))
    print(f"{options.folder}: {split['tokens']} tokens in {split['documents']} documents, {copies} shards")


if __name__ == "__main__":
    main()
