#!/usr/bin/env python3
"""Writes src/eval/case_tables.inc: what Python's str.lower() and str.capitalize() make of one character.

HellaSwag's text is prepared with str.capitalize(), so octet needs the same mappings. They are taken from the Python that
runs this script. Runs of characters that move by the same distance are one row.

usage: scripts/make_case_tables.py [--check]
"""
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/eval/case_tables.inc"


def rows_of(mapping):
    """[first, last, step, distance] of the characters that become one other character."""
    rows = []
    for point in sorted(mapping):
        distance = mapping[point] - point
        for row in rows[-1:]:
            first, last, step, row_distance = row
            if distance == row_distance and point - last in (1, 2) and (step in (0, point - last)):
                row[1], row[2] = point, point - last
                break
        else:
            rows.append([point, point, 0, distance])
    return [[first, last, step or 1, distance] for first, last, step, distance in rows]


def main():
    text = "// Made by scripts/make_case_tables.py. Do not edit.\n"
    for name, change in (("Lower", str.lower), ("Title", str.capitalize)):
        single, several = {}, {}
        for point in range(0x110000):
            if 0xD800 <= point < 0xE000:
                continue
            changed = change(chr(point))
            if changed == chr(point):
                continue
            if len(changed) == 1:
                single[point] = ord(changed)
            else:
                several[point] = changed
        rows = ["{0x%X, 0x%X, %d, %d}" % tuple(row) for row in rows_of(single)]
        text += f"constexpr CaseRange k{name}Ranges[] = {{\n"
        line = "   "
        for row in rows:
            if len(line) + len(row) + 2 > 110:
                text, line = text + line + "\n", "   "
            line += " " + row + ","
        text += line + "\n};\n"
        text += f"constexpr CaseExpansion k{name}Expansions[] = {{\n"
        for point, changed in several.items():
            text += '    {0x%X, "%s"},\n' % (point, "".join("\\x%02x" % b for b in changed.encode()))
        text += "};\n"
    if "--check" in sys.argv[1:]:
        return 0 if OUTPUT.read_text() == text else "src/eval/case_tables.inc is not what this script writes"
    OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
