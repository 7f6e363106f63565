#!/usr/bin/env python3
"""Compares octet's SentencePiece tokenizers with the libraries: same ids, same text back.

Trains small models of each kind on the text of --data, and compares tokenizer.model files with `sentencepiece`, and
tokenizer.json files in the forms of Llama 2, Mistral 7B v0.3 and others with `tokenizers`.
Needs the packages `sentencepiece`, `tokenizers`, `transformers` and `protobuf`, and a built octet.

usage: scripts/compare_sentencepiece.py --data FOLDER [--octet build/release/octet] [--count 20000] [--seed 1]
       scripts/compare_sentencepiece.py --write_golden tests/golden/sentencepiece
"""
import argparse
import copy
import json
import pathlib
import random
import sys
import tempfile
import time

try:
    import sentencepiece
    from tokenizers import Tokenizer
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
except ImportError as error:
    sys.exit(f"{error}: pip install sentencepiece tokenizers transformers protobuf")

from compare_tokenizers import CASES, Octet, ROOT, all_points, compare, corpus, random_string

MARK = "\u2581"
SPACES = ["  a", " a ", "a  b   c", "\n a\n\n b", " \n", "a\u2581b", "a\u2581\u2581x", "\u2581", "\u2581\u2581 \u2581a", " \u2581", "\u00a0a", "\t\ta",
          "<s>", "<s>a", "a</s>b </s> c", "</s></s>", "<s> <s>", "<unk>a", "a<unk><unk>", "\U0001f600\U0001f600", "[INST] Hi [/INST]",
          "a[INST]b", "<user>", "a<user>x b", "<user>x<user>", "<0x41>", "<0x0A>\n", "\u0000", "\u200b", "\ufb01x\ufb01", "\u2167\u00bd",
          "x" * 5000, "\u4f60\u597d" * 2000, "ab " * 2000, " " * 3000]
# How Llama 2's tokenizer was trained, with a smaller vocabulary.
LLAMA2 = dict(model_type="bpe", byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True,
              normalization_rule_name="identity", remove_extra_whitespaces=False)
MODELS = {
    "llama2": dict(LLAMA2, vocab_size=4000),
    "control": dict(LLAMA2, vocab_size=1500, control_symbols=["[INST]", "[/INST]", "<tool>"],
                    user_defined_symbols=["<user>", "<user>x", MARK * 2 + "x", "\u00e9"]),
    "bpe_nfkc": dict(model_type="bpe", vocab_size=2000, user_defined_symbols=["<sep>", "\ufb01"]),
    "unigram_nfkc": dict(model_type="unigram", vocab_size=4000, user_defined_symbols=["<sep>", "ing"]),
    "unigram_bytes": dict(model_type="unigram", vocab_size=2000, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, add_dummy_prefix=False),
}


def train(texts, prefix, options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.split("\n") if line]), model_prefix=str(prefix),
        minloglevel=2, num_threads=1, max_sentence_length=16384,
        hard_vocab_limit=options["model_type"] == "bpe", **options)
    return prefix.with_suffix(".model")


def json_forms(model):
    """The model as tokenizer.json files, as published for several families."""
    parts = SentencePieceExtractor(str(model)).extract(None)
    special = {"<unk>": True, **{t.content: t.special for t in parts["additional_special_tokens"]}}
    added = [{"id": parts["vocab"][content], "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": is_special} for content, is_special in special.items()]
    added.sort(key=lambda t: t["id"])
    prepend = {"type": "Prepend", "prepend": MARK}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    shown = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    llama2 = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}, "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [*shown, strip]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": parts["vocab"], "merges": [list(m) for m in parts["merges"]]},
    }
    forms = {"llama2": llama2}

    def form(name, **changes):
        file = copy.deepcopy(llama2)
        model = changes.pop("model", {})
        file.update(changes)
        file["model"].update(model)
        forms[name] = file
        return file

    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    form("mistral_v03", normalizer=None, pre_tokenizer=metaspace)
    form("metaspace_always", normalizer=None, pre_tokenizer={**metaspace, "prepend_scheme": "always", "split": True})
    form("never", normalizer=None, pre_tokenizer={**metaspace, "prepend_scheme": "never"})
    form("gemma", normalizer=replace, decoder={"type": "Sequence", "decoders": shown},
         pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})
    form("whole_words", model={"ignore_merges": True})
    form("unknown", model={"byte_fallback": False})
    form("unknown_each", model={"byte_fallback": False, "fuse_unk": False}, normalizer=None, pre_tokenizer=metaspace)
    phi = form("normalized_tokens")
    for content, flags in [("<|end|>", ["rstrip", "special"]), ("<|user|>", ["lstrip"]), ("yes", ["single_word"]),
                                          ("x y", ["normalized"]), ("the", ["normalized", "single_word"])]:
        # The library numbers them so, whatever the file says.
        free = max(max(parts["vocab"].values()), *(t["id"] for t in phi["added_tokens"])) + 1
        phi["added_tokens"].append({"id": parts["vocab"].get(content, free), "content": content, **{
            k: k in flags for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}})
    mixed = form("mistral_tokens", normalizer=None, pre_tokenizer=metaspace)
    mixed["added_tokens"] = phi["added_tokens"]
    return forms


def test_texts(args, specials):
    rng = random.Random(args.seed)
    documents = list(corpus(args.data))
    words = sorted({w for text in documents[:2000] for w in text.split()}) or ["the", "of"]
    fuzz = [random_string(rng, words, specials) for _ in range(args.count)]
    points = [] if args.quick else list(all_points())[::7]
    return {"cases": CASES + SPACES, "corpus": documents, "fuzz": fuzz, "code points": points}


def without_ties(library, expected, actual):
    """Where Unigram has two ways of the same sum of scores, float rounding chooses one."""
    def score(ids):
        return sum(library.get_score(i) for i in ids)
    same = [a != b and abs(score(a) - score(b)) <= 1e-6 * abs(score(a)) for a, b in zip(expected, actual)]
    return [a if s else b for a, b, s in zip(expected, actual, same)], sum(same)


def check_model(octet, model, args):
    """Against `sentencepiece`, which does not look for control tokens in a text."""
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = range(library.get_piece_size())
    control = [library.id_to_piece(i) for i in pieces if library.is_control(i) or library.is_unknown(i)]
    wrong = 0
    for what, texts in test_texts(args, ["<user>", "<sep>", "ing"]).items():
        texts = [t for t in texts if not any(c in t for c in control)]
        if "unigram" in model.stem:
            texts = [t[:8000] for t in texts]
        expected = [library.encode(t) for t in texts]
        actual = octet.encode(texts)
        if "unigram" in model.stem:
            actual, ties = without_ties(library, expected, actual)
            print(f"{model.stem}: {ties} of {len(texts)} are other ways of the same score")
        wrong += compare(model.stem, f"model, {what}", texts, expected, actual)
        special = [t for t, a, b in zip(texts[:200], expected, octet.encode(texts[:200])) if t and a == b]
        wrong += compare(model.stem, "model, bos", special, [library.encode(t, add_bos=library.bos_id() >= 0) for t in special],
                         octet.encode(special, "--add_special"))
        # The library shows an unknown token as " \u2047 ".
        kept = [ids for ids in expected if library.unk_id() not in ids]
        wrong += compare(model.stem, f"model, decode {what}", kept, library.decode(kept), octet.decode(kept))
    return wrong


def check_json(program, name, path, args):
    library = Tokenizer.from_file(str(path))
    octet = Octet(program, path)
    specials = [t.content for t in library.get_added_tokens_decoder().values()]
    specials += [" " + s for s in specials] + [s + "\n " for s in specials]
    wrong = 0
    for what, texts in test_texts(args, specials).items():
        for special in (False, True):
            if special and what != "cases":
                continue
            expected = [library.encode(t, add_special_tokens=special).ids for t in texts]
            wrong += compare(name, what, texts, expected, octet.encode(texts, *(["--add_special"] if special else [])))
        wrong += compare(name, f"decode {what}", expected, library.decode_batch(expected, skip_special_tokens=False),
                         octet.decode(expected))
    return wrong


def check(args):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, options in MODELS.items():
            if args.only not in (None, name):
                continue
            model = train(list(corpus(args.data))[:4000], folder / name, options)
            wrong += check_model(Octet(args.octet, model), model, args)
            if not options.get("byte_fallback") or options["model_type"] != "bpe":
                continue
            for form, file in json_forms(model).items():
                path = folder / f"{name}_{form}.json"
                path.write_text(json.dumps(file))
                wrong += check_json(args.octet, f"{name} as {form}", path, args)
    return wrong


def write_golden(folder):
    """Small models of octet's own documentation, with the ids of the libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    documentation = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    golden = {}
    # A few rules instead of NFKC's 200 KB: ligature, numeral, letter with accent, spaces, nothing, a longer sequence.
    rules = folder / "rules.tsv"
    rules.write_text("FB01\t66 69\n2167\t56 49 49 49\n65 301\tE9\nA0\t20\n9\t20\n3000\t20\n200B\t\n201C 201D\t22 22\n")
    for name, options in {"bpe": dict(MODELS["control"], vocab_size=420),
                          "unigram": dict(MODELS["unigram_nfkc"], vocab_size=200, normalization_rule_tsv=str(rules))}.items():
        model = train(documentation, folder / name, options)
        (folder / f"{name}.vocab").unlink()
        library = sentencepiece.SentencePieceProcessor(model_file=str(model))
        texts = [t for t in CASES + SPACES[:-4] if not any(c in t for c in ("<s>", "</s>", "<unk>", "[INST]", "[/INST]"))]
        golden[model.name] = [{"text": t, "ids": library.encode(t)} for t in texts]
        if name != "bpe":
            continue
        forms = json_forms(model)
        for form in ("llama2", "mistral_v03"):
            path = folder / f"{form}.json"
            path.write_text(json.dumps(forms[form], separators=(",", ":")) + "\n")
            library = Tokenizer.from_file(str(path))
            golden[path.name] = [{"text": t, "ids": (ids := library.encode(t, add_special_tokens=False).ids),
                                  "decoded": library.decode(ids, skip_special_tokens=False)} for t in CASES + SPACES[:-4]]
    rules.unlink()
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]"
             for name, cases in golden.items()]
    (folder / "cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {folder}: {', '.join(f'{len(c)} cases of {n}' for n, c in golden.items())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--count", type=int, default=20000, help="random strings per tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="without the sweep over code points")
    parser.add_argument("--write_golden", type=pathlib.Path)
    args = parser.parse_args()
    if args.write_golden:
        return write_golden(args.write_golden)
    if not args.data:
        sys.exit("--data is missing: a folder with text/")
    start = time.time()
    wrong = check(args)
    print(f"{'EQUAL' if wrong == 0 else f'{wrong} DIFFERENCES'} in {time.time() - start:.0f} s")
    sys.exit(0 if wrong == 0 else 1)


if __name__ == "__main__":
    main()
