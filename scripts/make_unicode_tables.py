#!/usr/bin/env python3
"""Writes src/data/tokenizer/unicode_tables.inc from the Unicode data files (Debian package unicode-data, 15.0.0).

Ids must equal those of the `tokenizers` library, whose parts follow different versions of Unicode:
  - \\p{L}, \\p{N}, \\s (Oniguruma 6.9.10) and \\w (Rust's regex): Unicode 16.0. Characters of 15.1 and 16.0 are not in
    the 15.0 files: they are listed below as supplements.
  - NFC (unicode-normalization-alignments 0.1): Unicode 9.0. A newer character has no decomposition and
    combining class 0, so the normalisation tables skip everything with an age above 9.0.

usage: scripts/make_unicode_tables.py [--data /usr/share/unicode] [--check]
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "src/data/tokenizer/unicode_tables.inc"
NFC_AGE = (9, 0)

LETTER, NUMBER, SPACE, WORD, NFC_ACTIVE = 1, 2, 4, 8, 16

# Unicode 15.1 and 16.0: general categories L* and N*, and what \w holds beyond them (marks, alphabetic symbols).
LETTERS_SINCE_15 = """1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 11380-11389 1138B
    1138E 11390-113B5 113B7 113D1 113D3 11BC0-11BE0 13460-143FA 16100-1611D 16D40-16D6C 18CFF 1E5D0-1E5ED 1E5F0
    2EBF0-2EE5D"""
NUMBERS_SINCE_15 = "10D40-10D49 116D0-116E3 11BF0-11BF9 16130-16139 16D70-16D79 1CCF0-1CCF9 1E5F1-1E5FA"
OTHER_WORD_SINCE_15 = """897 10D69-10D6D 10EFC 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2 11F5A
    1611E-1612F 1E5EE-1E5EF"""


def parse_ranges(text):
    points = set()
    for item in text.split():
        first, _, last = item.partition("-")
        points.update(range(int(first, 16), int(last or first, 16) + 1))
    return points


def property_lines(path):
    """(first, last, [fields]) of a file of the form `0041..005A ; Name ; value # comment`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = [f.strip() for f in line.split("#")[0].split(";")]
        if len(fields) < 2:
            continue
        first, _, last = fields[0].partition("..")
        yield int(first, 16), int(last or first, 16), fields[1:]


def points_with(path, *names):
    return {c for first, last, fields in property_lines(path) if tuple(fields[:len(names)]) == names
            for c in range(first, last + 1)}


def read_unicode_data(path):
    """code point -> (category, combining class, canonical decomposition)"""
    data, range_first = {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split(";")
        point = int(fields[0], 16)
        if fields[1].endswith("First>"):
            range_first = point
            continue
        first = range_first if fields[1].endswith("Last>") else point
        decomposition = [] if "<" in fields[5] else [int(x, 16) for x in fields[5].split()]
        for c in range(first, point + 1):
            data[c] = (fields[2], int(fields[3]), decomposition)
    return data


def ranges_of(values):
    """[(first, last, value)] of a dict, adjacent equal values joined."""
    ranges = []
    for point in sorted(values):
        if ranges and ranges[-1][1] == point - 1 and ranges[-1][2] == values[point]:
            ranges[-1][1] = point
        else:
            ranges.append([point, point, values[point]])
    return ranges


def table(declaration, rows, row_format):
    text, line = f"{declaration} = {{\n", " "
    for row in rows:
        item = row_format(row)
        if len(line) + 1 + len(item) > 110:
            text, line = text + line + "\n", " "
        line += " " + item
    return text + line + "\n};\n"


def generate(folder):
    data = read_unicode_data(folder / "UnicodeData.txt")
    core = folder / "DerivedCoreProperties.txt"
    props = folder / "PropList.txt"

    letters = {c for c, d in data.items() if d[0][0] == "L"} | parse_ranges(LETTERS_SINCE_15)
    numbers = {c for c, d in data.items() if d[0][0] == "N"} | parse_ranges(NUMBERS_SINCE_15)
    word = {c for c, d in data.items() if d[0][0] == "M" or d[0] in ("Nd", "Pc")}
    word |= points_with(core, "Alphabetic") | points_with(props, "Join_Control")
    # The numbers of 15.1 and 16.0 are all decimal digits.
    word |= parse_ranges(LETTERS_SINCE_15) | parse_ranges(NUMBERS_SINCE_15) | parse_ranges(OTHER_WORD_SINCE_15)
    spaces = points_with(props, "White_Space")

    age = {c: tuple(map(int, fields[0].split(".")))
           for first, last, fields in property_lines(folder / "DerivedAge.txt") for c in range(first, last + 1)}
    old = {c for c in data if age.get(c, (99, 0)) <= NFC_AGE}
    derived = folder / "DerivedNormalizationProps.txt"
    not_composed = points_with(derived, "NFC_QC", "N") | points_with(derived, "NFC_QC", "M")
    excluded = points_with(derived, "Full_Composition_Exclusion")
    combining = {c: data[c][1] for c in old if data[c][1] != 0}
    active = {c for c in not_composed if c in old} | set(combining)
    decompositions = {c: data[c][2] for c in sorted(old) if data[c][2]}
    compositions = sorted((d[0], d[1], c) for c, d in decompositions.items() if len(d) == 2 and c not in excluded)

    classes = {}
    for points, bit in ((letters, LETTER), (numbers, NUMBER), (spaces, SPACE), (word, WORD), (active, NFC_ACTIVE)):
        for c in points:
            classes[c] = classes.get(c, 0) | bit

    version = re.search(r"\d+\.\d+\.\d+", derived.read_text(encoding="utf-8").splitlines()[0]).group()
    out = f"// Written by scripts/make_unicode_tables.py from Unicode {version}; do not edit.\n"
    out += "// Class bits: 1 letter, 2 number, 4 white space, 8 word (\\w of single_word), 16 takes part in NFC.\n"
    out += table("constexpr ClassRange kClassRanges[]", ranges_of(classes),
                 lambda r: f"{{{r[0]:#x}, {r[1]:#x}, {r[2]}}},")
    out += "// Canonical combining classes other than 0.\n"
    out += table("constexpr ClassRange kCombiningRanges[]", ranges_of(combining),
                 lambda r: f"{{{r[0]:#x}, {r[1]:#x}, {r[2]}}},")
    out += "// One step of canonical decomposition, sorted by `point`; `second` is 0 for a singleton.\n"
    out += table("constexpr Decomposition kDecompositions[]", decompositions.items(),
                 lambda r: "{" + ", ".join(f"{x:#x}" for x in (r[0], r[1][0], r[1][1] if len(r[1]) > 1 else 0)) + "},")
    out += "// Primary composites, sorted by (first, second); Hangul is composed by arithmetic.\n"
    out += table("constexpr Composition kCompositions[]", compositions,
                 lambda r: "{" + ", ".join(f"{x:#x}" for x in r) + "},")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/unicode"))
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    args = parser.parse_args()
    if not (args.data / "UnicodeData.txt").exists():
        sys.exit(f"{args.data}/UnicodeData.txt not found: install the package unicode-data or pass --data FOLDER")
    text = generate(args.data)
    if args.check:
        sys.exit(0 if OUTPUT.read_text() == text else f"{OUTPUT} differs from what the data files give")
    OUTPUT.write_text(text)
    print(f"wrote {OUTPUT.relative_to(ROOT)}: {len(text)} bytes")


if __name__ == "__main__":
    main()
