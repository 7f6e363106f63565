"""The program: where it is, what it is given, what it says."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from ._errors import OctetError, error_of

Config = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]

logger = logging.getLogger("octet")
console = logging.getLogger("octet.console")


def find_program() -> str:
    named = os.environ.get("OCTET_PROGRAM")
    if named:
        if not os.path.isfile(named) or not os.access(named, os.X_OK):
            raise OctetError(f"OCTET_PROGRAM is {named}, which is not a program")
        return named
    beside = Path(sys.executable).parent / "octet"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("octet")
    if found is None:
        raise OctetError(
            "the program octet was not found next to Python or on the PATH. Install it with 'pip install .' or "
            "'make install' in the source folder, or set OCTET_PROGRAM to its path"
        )
    return found


def _texts(key: str, value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(key, item)] or [""]
    if isinstance(value, Mapping):
        raise TypeError(f"{key} holds a dict, which a flag cannot hold: pass it in a config dict")
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [os.fspath(value) if isinstance(value, os.PathLike) else str(value)]


def settings(keys: Mapping[str, Any]) -> list[tuple[str, Union[str, list[str]]]]:
    """The keys as texts, or lists of texts. None keeps the default, as null does in a file."""
    result: list[tuple[str, Union[str, list[str]]]] = []
    for key, value in keys.items():
        if value is not None:
            texts = _texts(key, value)
            result.append((key, texts if isinstance(value, (list, tuple)) and value else texts[0]))
    return result


def flags(keys: Mapping[str, Any]) -> list[str]:
    result = []
    for key, words in settings(keys):
        if not isinstance(words, str):
            if any("," in word for word in words):
                raise ValueError(f"an item of {key} holds a comma, which a flag cannot hold: pass it in a config dict")
            words = ",".join(words)
        result.append(f"--{key}={words}")
    return result


@contextlib.contextmanager
def config_file(config: Config) -> Iterator[Optional[str]]:
    """The path of the configuration. A dict becomes a temporary file: JSON is YAML, and keeps every value as it is."""
    if config is None or not isinstance(config, Mapping):
        yield None if config is None else os.fspath(config)
        return
    with tempfile.NamedTemporaryFile("w", prefix="octet-", suffix=".yaml", encoding="utf-8") as file:
        json.dump(dict(config), file, ensure_ascii=False, default=os.fspath)
        file.flush()
        yield file.name


class Log:
    """Turns what a child writes to stderr into log records, and keeps its last lines for an error."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=50)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            self._add(raw.decode(errors="replace"))

    def end(self) -> list[str]:
        """All lines that are kept, the last one also if it has no end."""
        if self._rest:
            self.feed(b"\n")
        return list(self.lines)

    def _add(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("error: "):
            logger.error("%s", line[len("error: ") :])
        elif line.startswith("warning: "):
            logger.warning("%s", line[len("warning: ") :])
        else:
            logger.info("%s", line)


def run_tool(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Runs a short command of octet. Returns its stdout and the lines of its log."""
    done = subprocess.run(
        [find_program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    log = Log()
    log.feed(done.stderr)
    lines = log.end()
    if done.returncode != 0:
        raise error_of(done.returncode, lines)
    return done.stdout.decode(errors="replace"), lines
