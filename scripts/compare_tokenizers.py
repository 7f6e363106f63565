#!/usr/bin/env python3
"""Compares `octet tokenize` with the `tokenizers` library: same ids, same text back, for every string.

Needs the `tokenizers` package, a built octet, and a folder with tokenizers/*.json and optionally text/ and sft/.

usage: scripts/compare_tokenizers.py --data FOLDER [--octet build/release/octet] [--count 100000] [--seed 1]
       scripts/compare_tokenizers.py --data FOLDER --write_golden tests/golden/tokenizers/cases.json
"""
import argparse
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("the Python package `tokenizers` is missing: pip install tokenizers")

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Strings that exercise one rule each; they are also the golden cases.
CASES = [
    "", " ", "a", "\n", "Hello, world!", "  two  spaces   three ", "tab\tand\ttab", "\t\tindented", "trailing   ",
    "trailing newline\n", "blank\n\n\nlines\n", "\r\n windows\r\n\r\nlines", " \n \n x", "\n  \n", "a\n  b\n\n   c",
    "I'm you're he's we'll they've I'd can't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D CAN'T", "'S 'tis 'twas o'clock",
    "it'\u017f long s", "'\u017f'\u017f", "''''", "'", "'l", "'r", "'LL'Ll'lL", "\u2019s curly",
    "1 12 123 1234 12345 1234567890", "3.14159 1,000,000 $5 50% #1", "x1y22z333", "\u00bd\u00b2\u2167 \u0663\u0664",
    "if (a[i] != b[i]) { return -1; } // done", "def f(x):\n    return x ** 2\n\n\nclass A:\n\tpass\n",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "https://example.org/a?b=c&d=%20e#f",
    "...!!!???\n\n---\n***", "a.\nb,\r\nc;\n\n d", "!\n", " !\n\n", "  !", "\u00a0nbsp\u00a0\u00a0x", "\u3000\u3000wide",
    "caf\u00e9", "cafe\u0301", "\u1e9b\u0323", "a\u0323\u0307 a\u0307\u0323", "\u212b \u2126 \u212a", "q\u0307\u0323\u0301",
    "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\uac00\u11a8 \u1100\u1161\u1161", "\u0958 \u0915\u093c",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u5929\u6c14\u4e0d\u9519\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u1e0a\u0323 \u1e0c\u0307", "\U0001f600\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001d400\U0001d7d8 \U00020000\U0002ebf0", "\U00013460\U000105c0\U00010d40",
    "\ue000\U000f0000\U0010ffff", "\u200b\u200e\ufeff\u0000\u0001\u007f", "\u0085\u2028\u2029\u1680\u180e", "\ufffd\ufffd",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|begin_of_text|>x<|end_of_text|>",
    "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n", "<tool_call>\n{}\n</tool_call>", "<|im_start", "<|im_|im_end|>",
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<|reserved_special_token_25|><|reserved_special_token_2|>",
    "e\u0301<|im_end|>\u0301", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "a" * 70, "ab" * 40, " " * 70, "\n" * 50,
    "aA" * 30 + "!" * 50, "\u00e9" * 30, "\u0301" * 12, "supercalifragilisticexpialidocious antidisestablishmentarianism",
]

POOLS = {
    "letters": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digits": "0123456789\u0660\u0661\u06f5\u0967\uff11\u00b2\u00bd\u2163\U0001d7d9\u3007\u4e00",
    "spaces": "     \n\n\r\t\u000b\u000c\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u2019\u201c\u2014\u2026\u3002\uff0c\u00ab\u00bf\u20ac",
    "latin": "\u00e9\u00e8\u00fc\u00df\u00f1\u00e7\u0153\u0131\u0130\u017f\u0149\u01c5\u1e9e\ufb01\ufb06\u212a\u212b",
    "combining": "\u0300\u0301\u0302\u0303\u0307\u0308\u0323\u0327\u0328\u0334\u0338\u0345\u035c\u0360\u05b0\u064b\u093c\u0f71"
                 "\u0f72\u20d0\u302a\u3099\u309a\u1dce\U0001d165\U000110ba\u0bbe\u09be\u09d7\u0dcf\u102e\u07fd\u08ca\u1abf",
    "composing": "aeiouAEIOUcdnsyqg\u0915\u09c7\u0bc6\u0bca\u0cc6\u0dd9\u1025\u304b\u30db\u2260<>=\u0391\u03c9\u0627\u0648",
    "jamo": "\u1100\u1112\u1161\u1175\u11a7\u11a8\u11c2\u11c3\uac00\uac01\ud7a3\u115f\u1160",
    "cjk": "\u4f60\u597d\u4e16\u754c\u7684\u4e00\u662f\u6211\u5011\uf900\uf9d0\U0002f800\u3042\u30a2\u30fc\uff71",
    "scripts": "\u0416\u043f\u03b1\u03a9\u05d0\u0639\u0645\u0926\u0e01\u1000\u1780\u10d0\u0531\u13a0\u1f00\u2c00\ua000\U00010400\U00016a00",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\U0001f3fd\u2764\ufe0f\U0001f1e9\U0001f1ea\u20e3\U000e0067\U0001fae0",
    "odd": "\u0000\u0001\u001f\u007f\u00ad\u180e\u200b\u200d\u2060\ufeff\ufffd\ufffe\uffff\ue000\U000f0000\U0010ffff\u0378\U000e0001",
}
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'Re", "'vE", "'M", "'LL", "'D", "'\u017f", "'l", "'r", "'v"]


def random_point(rng):
    limit = rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x30000, 0x110000])
    while True:
        point = rng.randrange(limit)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def random_string(rng, words, specials):
    parts = []
    for _ in range(rng.choice([1, 2, 4, 8, 16])):
        kind = rng.randrange(14)
        if kind < 3:
            parts.append(rng.choice(words))
        elif kind == 3:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind == 4:
            parts.append(random_point(rng))
        elif kind == 5:
            parts.append("".join(random_point(rng) for _ in range(rng.randrange(1, 8))))
        elif kind == 6:
            parts.append(rng.choice(specials))
        elif kind == 7:
            parts.append(rng.choice(specials)[:rng.randrange(1, 12)])
        elif kind == 8:
            parts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 12))).decode("utf-8", "replace"))
        elif kind == 9:
            parts.append(rng.choice(POOLS["composing"]) + "".join(rng.choices(POOLS["combining"], k=rng.randrange(1, 5))))
        elif kind == 10:
            parts.append(rng.choice(POOLS["letters"]) * rng.randrange(1, 90))
        else:
            pool = POOLS[rng.choice(list(POOLS))]
            parts.append("".join(rng.choices(pool, k=rng.randrange(1, 10))))
    return rng.choice(["", "", "", " "]).join(parts)


def all_points():
    """Every code point that is a character: alone and between neighbours of each class."""
    for point in range(0x110000):
        if 0xD800 <= point < 0xE000:
            continue
        c = chr(point)
        yield f"{c} a{c}b {c}{c}1{c}!{c}\n{c}"
        yield f"a\u0301{c}\u0327\u0334 '{c}"


def corpus(folder):
    for path in sorted([*folder.glob("text/*"), *folder.glob("sft/*"), *folder.glob("eval/*")]):
        if path.suffix not in (".txt", ".json", ".jsonl"):
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines()]
        elif path.suffix == ".json":
            rows = json.loads(text)
        else:
            rows = []
            yield text
        for row in rows:
            yield from (value for value in row.values() if isinstance(value, str))


class Octet:
    def __init__(self, program, tokenizer):
        self.base = [program, "tokenize", "--tokenizer", str(tokenizer)]

    def run(self, data, *flags):
        done = subprocess.run([*self.base, *flags], input=data, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"octet failed: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout

    def encode(self, texts, *flags):
        lines = self.run("".join(json.dumps(t) + "\n" for t in texts).encode(), "--jsonl", *flags).decode().split("\n")
        return [[int(x) for x in line.split()] for line in lines[:-1]]

    def decode(self, id_lists):
        lines = self.run("".join(" ".join(map(str, ids)) + "\n" for ids in id_lists).encode(), "--jsonl", "--decode")
        return [json.loads(line) for line in lines.decode().split("\n")[:-1]]


def compare(name, what, inputs, expected, actual):
    wrong = [i for i, (a, b) in enumerate(zip(expected, actual)) if a != b]
    print(f"{name}: {what}: {len(inputs)} compared, {len(wrong)} differ", flush=True)
    if len(expected) != len(actual):
        print(f"  {len(expected)} answers expected, {len(actual)} given")
    for i in wrong[:5]:
        print(f"  {inputs[i]!r}\n    expected {expected[i]}\n    octet    {actual[i]}")
    return len(wrong) + abs(len(expected) - len(actual))


def check(program, path, args):
    library = Tokenizer.from_file(str(path))
    octet = Octet(program, path)
    rng = random.Random(args.seed)

    def library_ids(texts, special=False):
        ids = []
        for begin in range(0, len(texts), 10000):  # bounded memory: an Encoding is large
            ids += [e.ids for e in library.encode_batch(texts[begin:begin + 10000], add_special_tokens=special)]
        return ids

    def texts_equal(what, texts, special=False):
        flags = ["--add_special"] if special else []
        return compare(path.stem, what, texts, library_ids(texts, special), octet.encode(texts, *flags))

    documents = list(corpus(args.data))
    words = sorted({w for text in documents[:2000] for w in text.split()}) or ["the", "of", "and"]
    specials = [t.content for t in library.get_added_tokens_decoder().values()]
    wrong = texts_equal("cases", CASES) + texts_equal("cases with special tokens", CASES, special=True)
    wrong += texts_equal("corpus", documents)
    if not args.quick:
        points = list(all_points())
        for begin in range(0, len(points), 200000):
            wrong += texts_equal("code points", points[begin:begin + 200000])
    fuzz = [random_string(rng, words, specials) for _ in range(args.count)]
    for begin in range(0, len(fuzz), 50000):
        wrong += texts_equal("fuzz", fuzz[begin:begin + 50000])
    long = ["a" * 100000, "\n" * 100000, " " * 100000, "\u0301" * 100000, "ab1 \n" * 30000, "\u4f60" * 50000, "'" * 50000]
    wrong += texts_equal("long runs", long)

    size = library.get_vocab_size()
    known = [i for i in range(size) if library.id_to_token(i) is not None]
    # Added tokens whose text is not ASCII are decoded by the library as if it were its byte alphabet.
    known = [i for i in known if (library.id_to_token(i).isascii() or i not in library.get_added_tokens_decoder())]
    lists = [rng.choices(known, k=rng.randrange(1, 12)) for _ in range(args.count // 5)] + [[i] for i in known]
    expected = library.decode_batch(lists, skip_special_tokens=False)
    wrong += compare(path.stem, "decode", lists, expected, octet.decode(lists))

    for trial in range(5):  # any bytes come back as they were
        data = bytes(rng.randrange(256) for _ in range(20000)) if trial else bytes(range(256))
        if library.normalizer is not None:  # no lead bytes, so nothing that NFC could change
            data = bytes(b if b < 0xC2 or b > 0xF4 else b - 0x42 for b in data)
        back = octet.run(octet.run(data), "--decode")
        wrong += compare(path.stem, "random bytes there and back", ["bytes"], [data], [back])
    return wrong


def byte_alphabet():
    """GPT-2's: printable bytes are themselves, the others the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def synthetic_tokenizer(rng, words):
    """A small tokenizer.json with random merges and every option that octet reads."""
    alphabet = byte_alphabet()
    vocab = {c: i for i, c in enumerate(rng.sample(alphabet, 256))}
    merges = []
    sample = ["".join(alphabet[b] for b in (" " + w).encode()) for w in rng.choices(words, k=300)]
    for word in sample:
        parts = list(word)
        while len(parts) > 1 and rng.random() < 0.8:
            i = rng.randrange(len(parts) - 1)
            pair = (parts[i], parts[i + 1])
            parts[i:i + 2] = ["".join(pair)]
            if pair not in merges:
                merges.append(pair)
                vocab.setdefault(parts[i], len(vocab))
    rng.shuffle(merges)
    added, contents = [], ["<s>", "<s><s>", "</s>", "[MASK]", "the", "a", "\u00e9t\u00e9", "e\u0301", "  ", "\n", "1", "x y", "\u4f60"]
    for content in rng.sample(contents, rng.randrange(1, len(contents))):
        flags = {k: rng.random() < 0.4 for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        # The library panics where a white-space token with lstrip lies in what another has stripped.
        flags["lstrip"] &= bool(content.strip())
        added.append({"id": vocab.get(content, len(vocab) + len(added)), "content": content, **flags})
    for i, token in enumerate(t for t in added if t["content"] not in vocab):
        token["id"] = len(vocab) + i  # the library numbers them so, whatever the file says
    llama = rng.random() < 0.5
    byte_level = {"type": "ByteLevel", "add_prefix_space": not llama and rng.random() < 0.5, "trim_offsets": True,
                  "use_regex": not llama}
    regex = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + rng.choice(["", "{1,3}"]) +
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, byte_level]} if llama else byte_level
    if rng.random() < 0.3:
        byte_level["add_prefix_space"] = False
        digits = {"type": "Digits", "individual_digits": rng.random() < 0.5}
        pre_tokenizer = {"type": "Sequence",
                         "pretokenizers": [digits, *pre_tokenizer.get("pretokenizers", [pre_tokenizer])]}
    pairs = rng.random() < 0.5
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if rng.random() < 0.5 else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": rng.random() < 0.5, "vocab": vocab,
                  "merges": [list(p) if pairs else " ".join(p) for p in merges]},
    }


def check_synthetic(program, args):
    rng = random.Random(args.seed)
    words = sorted({w for text in CASES for w in text.split()})
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "synthetic.json"
        for trial in range(args.synthetic):
            path.write_text(json.dumps(synthetic_tokenizer(rng, words)))
            library = Tokenizer.from_file(str(path))
            specials = [t.content for t in library.get_added_tokens_decoder().values()]
            specials += [" " + s for s in specials] + [s + "\n " for s in specials]
            texts = CASES + [random_string(rng, words, specials) for _ in range(500)]
            expected = [e.ids for e in library.encode_batch(texts, add_special_tokens=False)]
            wrong += compare(f"synthetic {trial}", "fuzz", texts, expected, Octet(program, path).encode(texts))
            if wrong:
                print(path.read_text()[:3000])
                break
    return wrong


def check_tiktoken(program, path, args):
    """The same vocabulary as a rank file, against the `tiktoken` library where it is installed."""
    try:
        import tiktoken
    except ImportError:
        print(f"{path.stem}: the Python package `tiktoken` is missing, rank files are not compared")
        return 0
    byte_of = {c: b for b, c in enumerate(byte_alphabet())}
    file = json.loads(path.read_text(encoding="utf-8"))
    library = Tokenizer.from_file(str(path))
    added = {t["content"] for t in file["added_tokens"]}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in file["model"]["vocab"].items() if token not in added}
    split = file["pre_tokenizer"].get("pretokenizers", [{}])[0].get("pattern", {}).get("Regex")
    pattern = split or r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    encoding = tiktoken.Encoding(path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    rng = random.Random(args.seed)
    words = sorted({w for text in CASES for w in text.split() if "<" not in w})
    texts = [random_string(rng, words, ["x"]) for _ in range(args.count // 5)] + list(corpus(args.data))[:3000]
    normalize = library.normalizer.normalize_str if library.normalizer else str
    with tempfile.TemporaryDirectory() as folder:
        rank_file = pathlib.Path(folder) / f"{path.stem}.tiktoken"
        rank_file.write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
        expected = [encoding.encode_ordinary(normalize(t)) for t in texts]
        return compare(path.stem, "rank file", texts, expected, Octet(program, rank_file).encode(texts))


def write_golden(path, tokenizers):
    libraries = {p.stem: Tokenizer.from_file(str(p)) for p in tokenizers}
    cases = [{"text": text, **{name: t.encode(text, add_special_tokens=False).ids for name, t in libraries.items()}}
             for text in CASES]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    print(f"wrote {path}: {len(cases)} cases for {', '.join(libraries)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--count", type=int, default=100000, help="random strings per tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="stem of one tokenizer file")
    parser.add_argument("--quick", action="store_true", help="without the sweep over all code points")
    parser.add_argument("--synthetic", type=int, default=40, help="random small tokenizers with 500 strings each")
    parser.add_argument("--write_golden", type=pathlib.Path)
    args = parser.parse_args()
    tokenizers = [p for p in sorted((args.data / "tokenizers").glob("*.json")) if args.only in (None, p.stem)]
    if not tokenizers:
        sys.exit(f"{args.data}/tokenizers holds no .json file")
    if args.write_golden:
        return write_golden(args.write_golden, tokenizers)
    start = time.time()
    wrong = check_synthetic(args.octet, args) + sum(
        check(args.octet, path, args) + check_tiktoken(args.octet, path, args) for path in tokenizers)
    print(f"{'EQUAL' if wrong == 0 else f'{wrong} DIFFERENCES'} in {time.time() - start:.0f} s")
    sys.exit(0 if wrong == 0 else 1)


if __name__ == "__main__":
    main()
