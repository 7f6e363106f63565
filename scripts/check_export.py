#!/usr/bin/env python3
"""Loads what `octet export` wrote with Transformers and compares the logits with octet's own.

usage: check_export.py OCTET [MODEL...]

Without MODEL, small models of every family are made from tests/golden/models. Each is exported in fp32, in bf16 and in
shards, loaded with AutoModelForCausalLM and run on random ids; octet's logits come from `octet generate --print_logits`.
Prints the largest difference per model and fails above the tolerance. Needs torch, transformers and safetensors.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# max |a - b| / max |b|. fp32: sums in another order; bf16 is computed by both in fp32 from the same rounded weights.
TOLERANCE = 2e-5


def make_folder(golden: pathlib.Path, folder: pathlib.Path) -> None:
    """A Hugging Face folder from a golden file, which holds the config and the weights."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(str(golden), "pt") as file:
        config = json.loads(file.metadata()["config"])
        weights = {name[8:]: file.get_tensor(name).clone() for name in file.keys() if name.startswith("weights.")}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def run(octet: str, *arguments: str) -> str:
    done = subprocess.run([octet, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"octet {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def compare(octet: str, folder: pathlib.Path) -> float:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    length = min(24, model.config.max_position_embeddings)
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = model(ids).logits[0].double()
    text = run(octet, "generate", str(folder), "--print_logits", "--device", "cpu", "--mixed_precision", "fp32",
               "--prompt_ids", " ".join(str(i) for i in ids[0].tolist()))
    actual = torch.tensor(json.loads(text)["logits"], dtype=torch.float64)
    if actual.shape != expected.shape:
        raise SystemExit(f"{folder}: octet gives logits {tuple(actual.shape)}, Transformers {tuple(expected.shape)}")
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def check_tokenizer(octet: str, work: pathlib.Path) -> None:
    """The exported bytes tokenizer must give the bytes back."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                         num_attention_heads=2, max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(str(work / "random"))
    folder = work / "tokenizer"
    run(octet, "export", str(work / "random"), "--output", str(folder), "--tokenizer", "bytes")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    text = "naïve\tline\n中 <|endoftext|>"
    head = text.removesuffix("<|endoftext|>")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids != [*head.encode(), 256] or tokenizer.decode(ids[:-1]) != head or tokenizer.eos_token_id != 256:
        raise SystemExit(f"{folder}: the bytes tokenizer gives {ids}")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    try:
        import safetensors, torch, transformers  # noqa: F401, E401
    except ImportError as error:
        sys.exit(f"the Python package `{error.name}` is missing: pip install torch transformers safetensors")
    octet, given = sys.argv[1], sys.argv[2:]
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        models = [pathlib.Path(path) for path in given]
        if not models:
            for golden in sorted((ROOT / "tests/golden/models").glob("*.safetensors")):
                make_folder(golden, work / golden.stem)
                models.append(work / golden.stem)
        for number, model in enumerate(models):
            for label, flags in (("fp32", ["--dtype", "fp32"]), ("bf16", ["--dtype", "bf16"]),
                                 ("shards", ["--dtype", "fp32", "--max_shard_size_gb", "0.00001"])):
                output = work / f"{number}-{label}"
                run(octet, "export", str(model), "--output", str(output), *flags)
                difference = compare(octet, output)
                wrong = not difference <= TOLERANCE
                failed |= wrong
                shards = len(list(output.glob("*.safetensors")))
                print(f"{model.name:24} {label:7} {shards:3} file(s)  max difference {difference:.2e}"
                      f"{'  TOO LARGE' if wrong else ''}")
        if not given:
            check_tokenizer(octet, work)
            print("bytes tokenizer: the same ids and text in Transformers")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
