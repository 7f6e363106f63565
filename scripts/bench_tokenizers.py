#!/usr/bin/env python3
"""Times `octet tokenize` against the `tokenizers` library on one core, and octet on all cores. Also against
`sentencepiece`, for tokenizers/*.model.

Both encode the same documents in memory, without loading, reading or printing. The library uses encode_batch_fast,
which skips offsets. One core is measured in CPU time, because other load disturbs it less. "first" is the first pass (empty word caches), "best" the fastest of the later ones.

usage: scripts/bench_tokenizers.py --data FOLDER [--octet build/release/octet] [--tokenizers FOLDER] [--repeats 5]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

# Read by the library when it starts.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("the Python package `tokenizers` is missing: pip install tokenizers")

ROOT = pathlib.Path(__file__).resolve().parent.parent


def documents(folder):
    texts = []
    for path in sorted([*folder.glob("text/*.txt"), *folder.glob("text/*.jsonl")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            texts += [json.loads(line)["text"] for line in text.splitlines()]
        else:  # in blocks, so that octet does not use more than one thread
            texts += [text[i:i + 65536] for i in range(0, len(text), 65536)]
    return texts


def library_seconds(tokenizer, texts, repeats):
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seconds.append(time.process_time() - start)
        tokens = sum(len(e.ids) for e in encodings)
        del encodings
    return seconds, tokens


def sentencepiece_seconds(path, texts, repeats):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        tokens = sum(len(processor.encode(text)) for text in texts)
        seconds.append(time.process_time() - start)
    return seconds, tokens


def octet_bench(program, path, data, repeats, *flags):
    done = subprocess.run([program, "tokenize", "--tokenizer", str(path), "--bench", str(repeats), *flags],
                          input=data, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"octet failed: {done.stderr.decode('utf-8', 'replace')}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--tokenizers", type=pathlib.Path, help="folder of tokenizers, instead of FOLDER/tokenizers")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    texts = documents(args.data)
    lines = "".join(json.dumps(t) + "\n" for t in texts).encode()
    whole = "\n".join(texts * 8).encode()
    slower = 0
    folder = args.data / "tokenizers" if args.tokenizers is None else args.tokenizers
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.model")]):
        octet = octet_bench(args.octet, path, lines, args.repeats, "--jsonl")
        if path.suffix == ".model":
            theirs, tokens = sentencepiece_seconds(path, texts, args.repeats)
        else:
            theirs, tokens = library_seconds(Tokenizer.from_file(str(path)), texts, args.repeats)
        cores = octet_bench(args.octet, path, whole, args.repeats)
        if tokens != octet["tokens"]:
            sys.exit(f"{path.name}: {octet['tokens']} tokens by octet, {tokens} by the library")
        megabytes = octet["bytes"] / 1e6
        ours = octet["cpu_seconds"]
        first = theirs[0] / ours[0]
        best = min(theirs[1:]) / min(ours[1:])
        slower += min(first, best) < 1
        print(f"{path.stem}: {megabytes:.1f} MB, {tokens} tokens; one core, MB/s: "
              f"octet first {megabytes / ours[0]:.1f} best {megabytes / min(ours[1:]):.1f}, "
              f"library first {megabytes / theirs[0]:.1f} best {megabytes / min(theirs[1:]):.1f}; "
              f"ratio first {first:.1f} best {best:.1f}; "
              f"octet on {os.cpu_count()} cores {cores['bytes'] / 1e6 / min(cores['seconds']):.1f} MB/s")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
