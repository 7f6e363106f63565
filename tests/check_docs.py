#!/usr/bin/env python3
"""Fails if a page of the documentation still has a placeholder such as @@NAME@@, or a link to a file or heading that does
not exist.

    tests/check_docs.py SOURCE_FOLDER
"""
import pathlib
import re
import sys


def anchor(heading):
    """The name that a heading has in links, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def text_of(page):
    return re.sub(r"^(```).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, name = target.partition("#")
        other = page.parent / file if file else page
        if not other.exists():
            yield f"{target}: there is no such file"
        elif name and other.is_file() and name not in {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text_of(other), re.MULTILINE)}:
            yield f"{target}: there is no such heading"


root = pathlib.Path(sys.argv[1])
pages = [root / "README.md"] + [page for folder in ("bench", "configs", "container", "docs", "tests") for page in sorted((root / folder).rglob("*.md"))]
found = [f"{page.relative_to(root)}:{number}: {line}"
         for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)
         if re.search("@@[A-Z]", line)]
found += [f"{page.relative_to(root)}: {problem}" for page in pages for problem in broken_links(page)]
print("\n".join(found) or f"{len(pages)} pages have no placeholders and no broken links")
sys.exit(1 if found else 0)
