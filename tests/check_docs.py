#!/usr/bin/env python3
"""Fails if a page of the documentation still has a placeholder such as @@NAME@@.

    tests/check_docs.py SOURCE_FOLDER
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
found = [f"{page.relative_to(root)}:{number}: {line}"
         for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)
         if re.search("@@[A-Z]", line)]
print("\n".join(found) or f"{len(pages)} pages have no placeholders")
sys.exit(1 if found else 0)
