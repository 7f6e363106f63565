#!/usr/bin/env python3
"""Compares greedy ids of octet and llama.cpp for models that octet exports as GGUF.

    scripts/compare_llama_cpp.py MODEL [MODEL ...] [--octet build/release/octet] [--outtype f32] [--tokens 48]
                                 [--prompt TEXT] [--tokenizer FILE]

Each MODEL (whatever `octet export` takes) is exported with --format gguf. llama.cpp (package llama-cpp-python) loads the
file, encodes the prompt with the tokenizer in it, and continues it with the most likely token. `octet generate
--temperature 0 --print_ids` does the same with the model itself, in fp32. Compared: the ids of the prompt, and the ids
of the continuation. With f32 weights both must be equal; with other types octet runs the exact weights and llama.cpp the
rounded ones, so the script only says where they part. Exits 1 if something differs that must be equal, 77 without the
package.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

try:
    import llama_cpp
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    print(f"the Python package `{error.name}` is missing: pip install llama-cpp-python")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def llama_ids(file, prompt, tokens, context):
    model = llama_cpp.Llama(str(file), n_ctx=context, n_batch=context, logits_all=False, verbose=False, n_threads=1,
                            seed=0)
    prompt_ids = model.tokenize(prompt.encode(), add_bos=model.metadata.get("tokenizer.ggml.add_bos_token") == "true",
                                special=True)
    ids = []
    for token in model.generate(prompt_ids, temp=0.0, repeat_penalty=1.0, top_k=1):
        ids.append(token)
        if len(ids) == tokens or llama_cpp.llama_vocab_is_eog(model._model.vocab, token):
            break
    return prompt_ids, ids


def octet_ids(options, model, tokens):
    more = ["--tokenizer", options.tokenizer] if options.tokenizer else []
    command = [options.octet, "generate", model, "--prompt", options.prompt, "--temperature", "0", "--max_tokens",
               str(tokens), "--print_ids", "--device", "cpu", "--mixed_precision", "fp32", *more]
    return [int(word) for word in run(command).split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--outtype", default="f32", choices=["f32", "bf16", "f16", "q8_0"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", default="Once upon a time, there was a little")
    parser.add_argument("--tokenizer")
    options = parser.parse_args()
    good = True
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "model.gguf"
            more = ["--tokenizer", options.tokenizer] if options.tokenizer else []
            run([options.octet, "export", model, "--format", "gguf", "--outtype", options.outtype, "--output", str(file),
                 *more])
            prompt_ids, theirs = llama_ids(file, options.prompt, options.tokens, options.context)
            ours = octet_ids(options, model, options.tokens)
        # octet prints the prompt's ids in front of the new ones.
        prompt_equal, ours = ours[:len(prompt_ids)] == list(prompt_ids), ours[len(prompt_ids):]
        same = common(ours, theirs)
        equal = prompt_equal and same == len(theirs) == len(ours)
        print(f"{model}: {len(prompt_ids)} ids of the prompt {'equal' if prompt_equal else 'DIFFERENT'}; {same} of "
              f"{max(len(ours), len(theirs))} greedy ids equal ({options.outtype})")
        if not equal:
            print(f"  octet     {ours}\n  llama.cpp {theirs}")
        good &= equal or (options.outtype != "f32" and prompt_equal)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
