#!/usr/bin/env python3
"""Fails if a page of the documentation still has a placeholder such as @@NAME@@, or a link to a file or heading that does
not exist, and if docs/walkthrough.md quotes code or names a file, function or test that is not in the repository.

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


def without_spaces(text):
    return re.sub(r"\s+", "", text)


def missing_code(page, sources):
    """Quoted C++ that is in none of the sources. `...` stands for what was left out, or begins a comment about it."""
    code = [without_spaces(text) for text in sources.values()]
    for block in re.findall(r"^```cpp\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for quote in re.split(r"\.\.\.(?: +//.*)?", block):
            if without_spaces(quote) and not any(without_spaces(quote) in text for text in code):
                yield f"this quote is not in the code:\n{quote.strip()}"


def missing_names(page, root, sources):
    """Files and names between backquotes that do not exist. <name> and NAME stand for others."""
    words = set(re.findall(r"\w+", "\n".join(sources.values()))) | {path.stem for path in sources}
    for quoted in sorted(set(re.findall(r"`([^`\n]+)`", text_of(page)))):
        name = re.sub(r"<\w+>|NAME", "*", quoted)
        if re.fullmatch(r"[\w*/.-]+\.(h|cpp|cu|cuh|py|sh|txt)|(src|apps|tests|scripts|bench|docs|cmake)/[\w*/.-]*", name):
            if not any(root.glob(name.rstrip("/"))) and not any(path.match(name) for path in sources):
                yield f"{quoted}: there is no such file"
            continue
        for word in re.findall(r"\w{3,}", re.sub(r"\w*\*\w*|\w+-\.\.\.", "", name)):
            if word not in words:
                yield f"{quoted}: nothing is called {word}"


root = pathlib.Path(sys.argv[1])
pages = [root / "README.md"] + [page for folder in ("bench", "configs", "container", "docs", "tests") for page in sorted((root / folder).rglob("*.md"))]
found = [f"{page.relative_to(root)}:{number}: {line}"
         for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)
         if re.search("@@[A-Z]", line)]
found += [f"{page.relative_to(root)}: {problem}" for page in pages for problem in broken_links(page)]
sources = {path.relative_to(root): path.read_text() for folder in ("src", "apps", "bench", "tests", "scripts", "cmake")
           for path in (root / folder).rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt")}
walkthrough = root / "docs" / "walkthrough.md"
problems = [*missing_code(walkthrough, sources), *missing_names(walkthrough, root, sources)]
found += [f"{walkthrough.relative_to(root)}: {problem}" for problem in problems]
print("\n".join(found) or f"{len(pages)} pages have no placeholders, no broken links and no wrong names")
sys.exit(1 if found else 0)
