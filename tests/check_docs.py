#!/usr/bin/env python3
"""Fails if a page of the documentation still has a placeholder such as @@NAME@@, or a link to a file or heading that does
not exist, and if docs/walkthrough.md quotes code or names a file, function or test that is not in the repository, forgets
a folder of src in its map, or has a list of places to touch that is not complete.

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


MOST_PLACES = 6


def backquoted(text):
    return re.findall(r"`([^`]+)`", text)


def names(text, name):
    """Whether a text has this name, in any case; a longer name may begin with it."""
    return re.search(r"(?<![a-z0-9])" + re.escape(name.lower()), text.lower()) is not None


def faults_of_list(title, body, sources):
    """A list of places to touch follows an example through the tree."""
    example = backquoted(re.search(r"^Example: (.*)$", body, re.MULTILINE).group(1))
    users = [name for name in backquoted(re.search(r"^Only used in: (.*)$", body, re.MULTILINE).group(1)) if "/" in name]
    places = [(backquoted(place)[0], backquoted(name)[0]) for place, name in re.findall(r"^\| (`[^|]*) \| (`[^|]*) \|", body, re.MULTILINE)]
    code = {path.as_posix(): text for path, text in sources.items()}
    if not 0 < len(places) <= MOST_PLACES:
        yield f"{title}: {len(places)} places, expected 1 to {MOST_PLACES}"
    for place, name in places:
        if place not in code or not names(code[place], name):
            yield f"{title}: {place} is not there or has no {name}"
    named = [path for path, text in code.items() if path.startswith(("src/", "apps/")) and any(names(text, name) for name in example)]
    for path in named:
        if path not in [place for place, _ in places] and not path.startswith(tuple(users)):
            yield f"{title}: {path} has {' or '.join(example)}, but is not in the list"
    for user in users:
        if not any(path.startswith(user) for path in named):
            yield f"{title}: {user} does not use {' or '.join(example)}"
    if not any(place in named for place, _ in places):
        yield f"{title}: no place has the example {' or '.join(example)}"


def faults_of_lists(page, sources):
    lists = re.findall(r"^### (.*)\n\n(Example: .*(?:\n.+)*\n\n(?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    titles = [title for title, _ in lists]
    if titles != ["An op", "A model family", "An objective", "An FP8 recipe"]:
        yield f"lists of places to touch: {titles}"
    for title, body in lists:
        yield from faults_of_list(title, body, sources)


def missing_folders(page, root):
    table = re.search(r"^## The map$.*?((?:^\|[^\n]*\n)+)", page.read_text(), re.MULTILINE | re.DOTALL).group(1)
    named = {name for line in table.splitlines() for name in backquoted(line.split("|")[2])}
    for folder in sorted(path.name for path in (root / "src").iterdir() if path.is_dir()):
        if folder not in named:
            yield f"the map has no folder {folder}"


root = pathlib.Path(sys.argv[1])
pages = [root / "README.md"] + [page for folder in ("bench", "configs", "container", "docs", "tests") for page in sorted((root / folder).rglob("*.md"))]
found = [f"{page.relative_to(root)}:{number}: {line}"
         for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)
         if re.search("@@[A-Z]", line)]
found += [f"{page.relative_to(root)}: {problem}" for page in pages for problem in broken_links(page)]
sources = {path.relative_to(root): path.read_text() for folder in ("src", "apps", "bench", "tests", "scripts", "cmake")
           for path in (root / folder).rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt")}
walkthrough = root / "docs" / "walkthrough.md"
problems = [*missing_code(walkthrough, sources), *missing_names(walkthrough, root, sources),
            *faults_of_lists(walkthrough, sources), *missing_folders(walkthrough, root)]
found += [f"{walkthrough.relative_to(root)}: {problem}" for problem in problems]
print("\n".join(found) or f"{len(pages)} pages have no placeholders, no broken links and no wrong names")
sys.exit(1 if found else 0)
