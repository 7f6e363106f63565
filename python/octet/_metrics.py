from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union, overload

Record = dict[str, Any]


class Metrics(Sequence[Record]):
    """The records of a run: one dict per logged step."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Metrics: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Record, Metrics]:
        return Metrics(self._records[index]) if isinstance(index, slice) else self._records[index]

    def __repr__(self) -> str:
        return f"<octet.Metrics: {len(self)} records: {', '.join(self.columns())}>"

    def columns(self) -> dict[str, list[Any]]:
        """A list per field, all of the same length: None where a record has no such field."""
        names = dict.fromkeys(name for record in self._records for name in record)
        return {name: [record.get(name) for record in self._records] for name in names}

    def to_pandas(self) -> Any:
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return pandas.DataFrame(self.columns())


def read_metrics(run: Union[str, os.PathLike[str]], /) -> Metrics:
    """The metrics of a run: of its folder, or of a file metrics.jsonl. The run may still be training."""
    path = Path(run)
    with open(path / "metrics.jsonl" if path.is_dir() else path, "rb") as file:
        return Metrics([record for line in file for record in parse_record(line)])


def parse_record(line: bytes) -> list[Record]:
    """One record, or none: a run that was killed leaves half a line. Texts such as "loss_text": "nan" become numbers."""
    try:
        record = json.loads(line)
    except ValueError:
        return []
    if not isinstance(record, dict):
        return []
    for name in [name for name in record if name.endswith("_text") and record.get(name[:-5], 0) is None]:
        record[name[:-5]] = float(record.pop(name))
    return [record]


class Follower:
    """Reads the records of a growing metrics.jsonl that are newer than `since` (seconds since 1970)."""

    def __init__(self, path: Path, since: float) -> None:
        self._path, self._since = path, since
        self._inode: Optional[int] = None
        self._offset = self._step = 0

    def read(self) -> list[Record]:
        try:
            file = open(self._path, "rb")
        except FileNotFoundError:
            return []
        with file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._inode or state.st_size < self._offset:  # a resumed run has cut or replaced it
                self._inode, self._offset = state.st_ino, 0
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = []
        for record in (record for line in whole.splitlines() for record in parse_record(line)):
            if record.get("time", self._since) >= self._since and record["step"] > self._step:
                self._step = record["step"]
                new.append(record)
        return new
