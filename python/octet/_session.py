"""A model that trains step by step: the program runs as a child and is asked over a socket, one call at a time.

Arrays travel through a file in memory that both processes have open.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
import weakref
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

from ._batch import Batch, make_batch, token_rows
from ._errors import ConfigError, OctetError, error_of
from ._metrics import Metrics
from ._program import Config, Log, config_file, find_program, settings

_SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class StepResult:
    """One optimizer step. skipped: its gradient was not finite, and the weights have not changed."""

    step: int
    loss: float
    penalty: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float
    skipped: bool


@dataclass(frozen=True)
class Evaluation:
    loss: float
    accuracy: float
    tokens: int


class Session:
    """A model in training: with octet.Session(model_preset="gpt2-tiny") as session: session.step(input_ids).

    config is a YAML file or a dict; keys are those of octet train, and keys override config. A session has one device.
    After a Ctrl-C it can be used further: the call that was interrupted is finished, and its result dropped.
    """

    def __init__(self, config: Config = None, /, **keys: Any) -> None:
        given = settings(keys)
        self._lock = threading.Lock()
        self._log = Log()
        self._records: list[dict[str, Any]] = []
        self._last_id = 0
        self._awaits_reply = False
        self._received = b""
        self._memory = os.memfd_create("octet")
        self._socket, childs_end = socket.socketpair()
        try:
            with childs_end:
                shared = [childs_end.fileno(), self._memory]
                self._process = subprocess.Popen(
                    [find_program(), "session", f"--socket={shared[0]}", f"--memory={shared[1]}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=shared,
                    start_new_session=True,
                )
        except BaseException:
            self._socket.close()
            os.close(self._memory)
            raise
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, self._socket, self._memory, self._log)
        try:
            with config_file(config) as path:
                opened = self._call("open", config=path and os.path.abspath(path), settings=given)
        except BaseException:
            self.close()
            raise
        self.num_parameters: int = opened["parameters"]
        self.vocab_size: int = opened["vocab_size"]
        self.batch_rows: int = opened["rows"]
        self.max_length: int = opened["length"]
        self.precision: str = opened["precision"]
        self.device: str = opened["device"]
        self.global_step: int = opened["step"]
        self._tensors: list[str] = [tensor["name"] for tensor in opened["tensors"]]

    def step(self, input_ids: Any = None, labels: Any = None, *, lr: Optional[float] = None) -> StepResult:
        """One optimizer step on these rows of token ids, or on the next batch of the configuration's dataset.

        Labels are not shifted: position t learns to predict label t+1, and -100 is not trained. Without labels, every
        next token is. lr: instead of the learning rate that the schedule of the configuration has here.
        """
        result = StepResult(**self._call("step", _batch_of(input_ids, labels), lr=_rate(lr)))
        self.global_step = result.step
        self._records.append(asdict(result))
        return result

    def evaluate(self, input_ids: Any = None, labels: Any = None) -> Evaluation:
        """The loss on these rows, or on the data that the configuration holds out. Nothing is trained."""
        result = Evaluation(**self._call("evaluate", _batch_of(input_ids, labels)))
        self._records.append({"step": self.global_step, "eval_loss": result.loss, "eval_accuracy": result.accuracy})
        return result

    def generate(
        self,
        prompts: Union[str, Sequence[str]],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        return list(self._call("generate", None, prompts=given, seed=seed, **sampling)["texts"])

    def encode(self, text: str) -> list[int]:
        return list(self._call("encode", text=text)["ids"])

    def decode(self, ids: Any) -> str:
        rows = token_rows(ids, "ids") if len(ids) else [array("i")]
        if len(rows) > 1:
            raise ValueError(f"ids has {len(rows)} rows; expected the ids of one text")
        return str(self._call("decode", ids=rows[0].tolist())["text"])

    def save(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Writes the model as a folder that Transformers loads."""
        return Path(self._call("save", path=os.path.abspath(path))["path"])

    def save_checkpoint(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Writes the whole state: after load_checkpoint, training continues with the same bits."""
        return Path(self._call("save_checkpoint", path=os.path.abspath(path))["path"])

    def load_checkpoint(self, path: Union[str, os.PathLike[str]]) -> None:
        self.global_step = self._call("load_checkpoint", path=os.path.abspath(path))["step"]

    def state_dict(self) -> dict[str, Any]:
        """All weights by name, as float32 NumPy arrays; without NumPy as pairs (shape, array('f'))."""
        return {name: self._tensor(name) for name in self._tensors}

    @property
    def log_history(self) -> Metrics:
        """All steps and evaluations of this session."""
        return Metrics(self._records)

    def close(self) -> None:
        """Ends the child. What is not saved is lost."""
        self._end()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._end.alive:
            return "<octet.Session: closed>"
        return f"<octet.Session: step {self.global_step}, {self.precision} on {self.device}>"

    def _tensor(self, name: str) -> Any:
        with self._lock:
            shape = tuple(self._ask("tensor", None, {"name": name})["shape"])
            values = array("f")
            values.frombytes(_read(self._memory, 4 * math.prod(shape)))
        try:
            import numpy  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            return shape, values
        return numpy.frombuffer(values, dtype=numpy.float32).reshape(shape)

    def _call(self, call: str, batch: Optional[Batch] = None, **arguments: Any) -> dict[str, Any]:
        with self._lock:
            return self._ask(call, batch, arguments)

    def _ask(self, call: str, batch: Optional[Batch], arguments: dict[str, Any]) -> dict[str, Any]:
        if not self._end.alive:
            raise OctetError("the session is closed")
        if self._awaits_reply:  # of a call that was interrupted, which may still use the memory
            self._reply()
        if batch is not None:
            arguments.update(batch.arguments())
            _write(self._memory, batch.data)
        self._last_id += 1
        request = json.dumps({"id": self._last_id, "call": call, **arguments}, allow_nan=False).encode() + b"\n"
        try:
            with _uninterrupted():
                self._awaits_reply = True
                self._socket.sendall(request)
        except OSError:
            raise self._child_has_ended() from None
        reply = self._reply()
        if "error" in reply:
            error = reply["error"]
            messages = error.get("messages") or [error["message"]]
            raise ConfigError(messages) if error["kind"] in ("config", "input") else OctetError("\n".join(messages))
        return _with_nan(reply["result"])

    def _reply(self) -> dict[str, Any]:
        """Waits for the reply to the last request."""
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._process.stderr, selectors.EVENT_READ)
            while True:
                while b"\n" in self._received:
                    line, rest = self._received.split(b"\n", 1)
                    reply: dict[str, Any] = json.loads(line)
                    answered = reply.get("id", self._last_id) == self._last_id
                    with _uninterrupted():
                        self._received = rest
                        self._awaits_reply = not answered
                    if answered:
                        _read_log(self._process, self._log)
                        return reply
                for key, _ in selector.select():
                    if key.fileobj is self._socket:
                        try:
                            with _uninterrupted():
                                data = self._socket.recv(1 << 20)
                                self._received += data
                        except ConnectionError:
                            data = b""
                        if not data:
                            raise self._child_has_ended()
                    elif not _read_log(self._process, self._log):
                        selector.unregister(key.fileobj)

    def _child_has_ended(self) -> OctetError:
        self._end()
        return error_of(self._process.returncode or 1, self._log.end())


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A Ctrl-C comes after these lines, not between them. They must not wait for long."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rate(lr: Any) -> Optional[float]:
    """Also of a NumPy or torch scalar."""
    if lr is None:
        return None
    if isinstance(lr, (str, bytes)) or not hasattr(lr, "__float__"):
        raise TypeError(f"lr is a {type(lr).__name__}; expected a number")
    rate = float(lr)
    if not math.isfinite(rate):
        raise ConfigError(f"lr is {rate}; expected a number from 0 on")
    return rate


def _batch_of(input_ids: Any, labels: Any) -> Optional[Batch]:
    if input_ids is None:
        if labels is not None:
            raise ValueError("labels are given without input_ids")
        return None
    return make_batch(input_ids, labels)


def _with_nan(result: dict[str, Any]) -> dict[str, Any]:
    """JSON has no numbers that are not finite: null stands for them."""
    return {name: math.nan if value is None else value for name, value in result.items()}


def _write(memory: int, data: array[int]) -> None:
    view = memoryview(data).cast("B")
    if os.fstat(memory).st_size < len(view):
        os.ftruncate(memory, len(view))
    written = 0
    while written < len(view):
        written += os.pwrite(memory, view[written:], written)


def _read(memory: int, size: int) -> bytearray:
    data = bytearray(size)
    done = 0
    while done < size:
        count = os.preadv(memory, [memoryview(data)[done:]], done)
        if count == 0:
            raise OctetError(f"octet gave {done} bytes of a tensor; expected {size}")
        done += count
    return data


def _read_log(process: subprocess.Popen[bytes], log: Log) -> bool:
    """Reads what the child has logged, without waiting. False at the end of its log."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    while True:
        try:
            data = os.read(process.stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        log.feed(data)


def _end(owner: int, process: subprocess.Popen[bytes], channel: socket.socket, memory: int, log: Log) -> None:
    """Ends the child: it ends at the end of its requests. Also called when Python exits."""
    if os.getpid() != owner:  # a fork of the process that has the session
        return
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()
    os.close(memory)
    deadline = time.monotonic() + _SECONDS_TO_END
    try:
        while _read_log(process, log) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        assert process.stderr is not None
        _read_log(process, log)
        process.stderr.close()
