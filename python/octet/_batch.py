"""Token ids of any kind as the int32 rows that the program reads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

IGNORED = -100  # a label that is not trained


@dataclass(frozen=True)
class Batch:
    rows: int
    length: int
    data: array[int]  # input_ids and then labels, row by row
    has_labels: bool

    def arguments(self) -> dict[str, Any]:
        return {"rows": self.rows, "length": self.length, "labels": self.has_labels}


def make_batch(input_ids: Any, labels: Any = None) -> Batch:
    """Rows of different lengths are padded on the right; the padding is not trained."""
    ids = token_rows(input_ids, "input_ids")
    lengths = [len(row) for row in ids]
    length = max(lengths)
    if length == 0:
        raise ValueError("input_ids is empty")
    data = array("i")
    _append(data, ids, length, 0)
    if labels is not None:
        targets = token_rows(labels, "labels")
        if [len(row) for row in targets] != lengths:
            raise ValueError(f"labels has {_shape(targets)}; expected {_shape(ids)}, as input_ids has")
        _append(data, targets, length, IGNORED)
    elif min(lengths) < length:
        _append(data, ids, length, IGNORED)
    return Batch(len(ids), length, data, len(data) > len(ids) * length)


def token_rows(value: Any, name: str) -> list[array[int]]:
    """One array per row of a list of lists, a NumPy array, a tensor, ...; one row is enough."""
    view = _int32_view(_int32_array(value))
    if view is not None:
        flat = array("i")
        flat.frombytes(view.cast("B"))
        width = view.shape[-1] if view.shape else 0
        return [flat[start : start + width] for start in range(0, len(flat), width)]
    rows = _items(value, name)
    if not rows:
        raise ValueError(f"{name} is empty")
    if isinstance(rows[0], (int, float)) or hasattr(rows[0], "__index__") and not hasattr(rows[0], "__len__"):
        rows = [rows]
    return [_row(row, f"row {index} of {name}") for index, row in enumerate(rows)]


def _int32_array(value: Any) -> Any:
    """A NumPy array or a torch tensor of integers as an int32 array, whose values are then copied together."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        try:
            value = value.detach().cpu().numpy()
        except (RuntimeError, TypeError):  # without NumPy, or of a type that it does not have
            return value
    if getattr(getattr(value, "dtype", None), "kind", "") not in ("i", "u") or not hasattr(value, "astype"):
        return value
    if value.size == 0 or int(value.min()) < -(2**31) or int(value.max()) >= 2**31:
        return value
    return value.astype("int32", order="C")


def _int32_view(value: Any) -> memoryview | None:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    return view if view.format == "i" and view.ndim in (1, 2) and view.c_contiguous and view.nbytes > 0 else None


def _items(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        return value
    if hasattr(value, "tolist"):  # NumPy, torch (also on a GPU), JAX, array.array
        value = value.tolist()
    elif hasattr(value, "numpy"):
        value = value.numpy().tolist()
    elif any(hasattr(value, way) for way in ("__array__", "__array_interface__", "__dlpack__")):
        import numpy  # type: ignore[import-not-found,unused-ignore]

        of_memory = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
        value = (numpy.asarray if of_memory else numpy.from_dlpack)(value).tolist()
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return value
    if not isinstance(value, list):
        raise TypeError(f"{name} is a {type(value).__name__}; expected rows of token ids: lists, an array or a tensor")
    return value


def _row(value: Any, name: str) -> array[int]:
    items = _items(value, name)
    try:
        if items and isinstance(items[0], bool):
            raise TypeError
        return array("i", items)
    except TypeError:
        kind = next((type(item).__name__ for item in items if type(item) is not int), "?")
        raise TypeError(f"{name} holds values of type {kind}; expected integers, the ids of tokens") from None
    except OverflowError:
        raise ValueError(f"{name} holds {max(items, key=abs)}, which is no id of a token") from None


def _append(data: array[int], rows: Sequence[array[int]], length: int, padding: int) -> None:
    for row in rows:
        data.extend(row)
        data.extend([padding] * (length - len(row)))


def _shape(rows: Sequence[array[int]]) -> str:
    lengths = {len(row) for row in rows}
    return f"{len(rows)} rows of " + (f"length {lengths.pop()}" if len(lengths) == 1 else "different lengths")
