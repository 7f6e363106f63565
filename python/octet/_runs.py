"""Whole runs and tools: each call is one process of the program."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from ._errors import STOPPED, error_of
from ._metrics import Follower, Metrics, Record, read_metrics
from ._program import Config, Log, config_file, console, find_program, flags, run_tool


@dataclass(frozen=True)
class Plan:
    """What a run would do. Bytes are those of one device."""

    fits: bool
    memory: dict[str, int]
    total_bytes: int
    precision: str
    warnings: list[str]
    raw: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A run that has ended. loss and metrics are those of the last logged step."""

    run_dir: Path
    loss: float
    metrics: Record
    log_history: Metrics
    exit_code: int


def plan(config: Config = None, /, *, ranks: int = 1, **keys: Any) -> Plan:
    """Shows what a run would do, without allocating anything. gpu="h200" plans for another GPU."""
    with config_file(config) as path:
        place = [] if ranks == 1 else [f"--ranks={ranks}"]
        out, log = run_tool(["plan", *([path] if path else []), "--json", *place, *flags(keys)])
    raw = json.loads(out)
    return Plan(
        fits=raw["fits"],
        memory=raw["memory"],
        total_bytes=raw["memory_bytes"],
        precision=raw["precision"],
        warnings=[line[len("warning: ") :] for line in log if line.startswith("warning: ")],
        raw=raw,
    )


def train(
    config: Config = None,
    /,
    *,
    on_step: Optional[Callable[[Record], Any]] = None,
    ranks: Optional[int] = None,
    resume: Union[None, bool, str, os.PathLike[str]] = None,
    **keys: Any,
) -> Result:
    """Trains a model: config is a YAML file or a dict, keys are those of octet train, and keys override config.

    on_step is called with every record of metrics.jsonl. If it returns False, the run saves and ends. If it raises, or
    Ctrl-C is pressed, the run saves and ends, and then the exception goes on. A second Ctrl-C kills the run.
    resume: "latest" (or True), "best", or the path of a checkpoint or run.
    """
    if resume:
        keys["resume"] = "latest" if resume is True else resume
    with config_file(config) as path:
        launch = [] if ranks in (None, 1) else ["launch", "-n", str(ranks)]
        return _Run([*launch, "train", *([path] if path else []), *flags(keys)], on_step).result()


def export(model: Union[str, os.PathLike[str]], output_dir: Union[str, os.PathLike[str]], /, **keys: Any) -> Path:
    """Writes a run, a checkpoint or another model as a folder that Transformers loads. keys: flags of octet export."""
    run_tool(["export", os.fspath(model), f"--output={os.fspath(output_dir)}", *flags(keys)])
    return Path(output_dir)


def generate(
    model: Union[str, os.PathLike[str]],
    prompts: Union[str, Sequence[str]],
    /,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    chat: bool = False,
    **keys: Any,
) -> list[str]:
    """Continues each prompt with a run, a checkpoint or another model. Returns the new texts, without the prompts.

    chat: each prompt is what a user says, in the chat template of the model, and the text is the answer.
    """
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        return []
    sampling = dict(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if chat:  # the program asks one question per call
        asked = ([os.fspath(model), f"--user={prompt}", *flags({**sampling, **keys})] for prompt in given)
        return [run_tool(["generate", *words])[0].rstrip("\n") for words in asked]
    words = [f"--prompt={prompt}" for prompt in given]
    out, _ = run_tool(["generate", os.fspath(model), "--jsonl", *words, *flags({**sampling, **keys})])
    return [json.loads(line) for line in out.split("\n") if line]  # a text may hold other ends of lines


class _Run:
    """A child that trains. It is in a session of its own, so that the terminal's Ctrl-C reaches only this process."""

    def __init__(self, arguments: Sequence[str], on_step: Optional[Callable[[Record], Any]]) -> None:
        self._on_step = on_step
        self._since = time.time()
        self._log = Log()
        self._rest = b""  # of a line of stdout
        self._folder: Optional[Path] = None
        self._follower: Optional[Follower] = None
        self._asked_to_stop = False
        self._process = subprocess.Popen(
            [find_program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def result(self) -> Result:
        with self._process:
            try:
                self._watch()
            except BaseException:
                self._on_step = None
                try:  # the second Ctrl-C may come at once
                    self._stop()
                    self._watch()
                except BaseException:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                    self._process.wait()
                    raise
                raise
        code = self._process.returncode
        if code != 0 and not (self._asked_to_stop and code in STOPPED):
            raise error_of(code, self._log.end())
        history = Metrics()
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):  # stopped before the first step
                history = read_metrics(self._folder)
        last = history[-1] if history else {}
        return Result(self._folder or Path(), last.get("loss", math.nan), last, history, code)

    def _stop(self) -> None:
        self._asked_to_stop = True
        self._process.send_signal(signal.SIGINT)

    def _watch(self) -> None:
        """Until the child has ended: passes its output on, and calls on_step."""
        assert self._process.stdout is not None and self._process.stderr is not None
        outputs = {self._process.stdout.fileno(): self._print, self._process.stderr.fileno(): self._log.feed}
        with selectors.DefaultSelector() as selector:
            for output in outputs:
                selector.register(output, selectors.EVENT_READ)
            while True:
                ended = self._process.poll() is not None
                ready = selector.select(0 if ended else 0.1)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    outputs[key.fd](data)
                    if not data:
                        selector.unregister(key.fd)
                self._report_steps()
                if ended and not ready:
                    return

    def _print(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in (raw.decode(errors="replace") for raw in lines):
            console.info("%s", line)
            summary = re.match(r"files  +(\S.*?) *$|step \d+ of \d+ is done: .* \((.*)\)$", line)
            if summary and self._folder is None:  # it was over before anybody looked
                self._folder = Path(summary[1] or summary[2])

    def _report_steps(self) -> None:
        if self._folder is None:
            self._folder = _locked_folder(self._process.pid)
        if self._folder is None or self._on_step is None:
            return
        if self._follower is None:
            self._follower = Follower(self._folder / "metrics.jsonl", self._since)
        for record in self._follower.read():
            if self._on_step(record) is False:
                self._on_step = None
                self._stop()
                return


def _locked_folder(session: int) -> Optional[Path]:
    """The folder of the run that a process of this session trains: it holds run.lock open there. Only it knows which
    one, because a configuration file, resume and the program's own choice may name it."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.getsid(int(process)) != session:
                continue
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                file = Path(os.readlink(f"/proc/{process}/fd/{descriptor}"))
                if file.name == "run.lock":
                    return file.parent
    return None
