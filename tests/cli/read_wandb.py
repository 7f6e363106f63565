#!/usr/bin/env python3
"""Prints what runs recorded offline for W&B hold, as one JSON array: read_wandb.py RUN_FOLDER.

One object per .wandb file, in the order of their names: {"file", "id", "project", "name", "config", "history", "alerts",
"exit_code", "metrics"}. history is a list of objects by name. The files are a log of blocks (LevelDB's log format with
W&B's header), and each record is a protobuf message of the package wandb. Exits with 77 where that is absent.
"""
import json
import pathlib
import sys

try:
    from wandb.proto import wandb_internal_pb2
except ImportError as error:
    print(f"skipped: the Python package wandb is not installed ({error})")
    sys.exit(77)

BLOCK, HEADER, FILE_HEADER = 32768, 7, 7


def records(data: bytes):
    """Up to the first record that is not whole: the client may still be writing the file."""
    if len(data) < FILE_HEADER:
        return
    assert data[:4] == b":W&B", data[:8]
    at, whole = FILE_HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        if kind == 0 or at + HEADER + length > len(data):
            return
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # the whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def items(entries):
    """NaN and infinities, which JSON has not got, become text."""
    return {
        entry.key or "/".join(entry.nested_key): json.loads(entry.value_json, parse_constant=str) for entry in entries
    }


def read(path: pathlib.Path) -> dict:
    result = {"file": str(path), "history": [], "alerts": [], "metrics": [], "exit_code": None, "preempting": False}
    for record in records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            result["id"], result["project"] = record.run.run_id, record.run.project
            result["name"], result["entity"] = record.run.display_name, record.run.entity
            result["resumed"] = record.run.resumed
            result["config"] = items(record.run.config.update)
        elif kind == "history":
            result["history"].append(items(record.history.item))
        elif kind == "alert":
            result["alerts"].append({"title": record.alert.title, "text": record.alert.text})
        elif kind == "exit":
            result["exit_code"] = record.exit.exit_code
        elif kind == "metric":
            result["metrics"].append([record.metric.name or record.metric.glob_name, record.metric.step_metric])
        elif kind == "preempting":
            result["preempting"] = True
    return result


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    print(json.dumps([read(path) for path in sorted(folder.glob("wandb/*run-*/*.wandb"))]))
