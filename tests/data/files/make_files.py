#!/usr/bin/env python3
"""Writes the compressed and Parquet files beside it, for tests/data/record_reader_test.cpp. Needs pyarrow, zstandard."""
import gzip
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

here = pathlib.Path(__file__).parent
lines = [json.dumps({"i": i, "text": "word " * (i % 5)}) + "\n" for i in range(2000)]
whole = "".join(lines).encode()
half = "".join(lines[:700]).encode()
zstd = zstandard.ZstdCompressor(write_checksum=True)
(here / "lines.jsonl.gz").write_bytes(gzip.compress(whole, mtime=0))
(here / "two_members.jsonl.gz").write_bytes(gzip.compress(half, mtime=0) + gzip.compress(whole[len(half):], mtime=0))
(here / "lines.jsonl.zst").write_bytes(zstd.compress(whole))
(here / "two_frames.jsonl.zst").write_bytes(zstd.compress(half) + zstd.compress(whole[len(half):]))

message = pa.struct([("content", pa.string()), ("role", pa.string())])
chat = pa.table({
    "id": pa.array([0, 1, 2], pa.int64()),
    "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
    "score": pa.array([0.5, 1.5, None]),
    "messages": pa.array([[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello \u00e9\U0001f600"}],
                          [], None], pa.list_(message)),
})
pq.write_table(chat, here / "chat.parquet", compression="zstd")
rows = pa.table({"text": [f"row {i} " + "x" * (i % 7) for i in range(1000)], "n": list(range(1000))})
pq.write_table(rows, here / "rows.parquet", compression="snappy", row_group_size=300)
types = pa.table({
    "large": pa.array(["one", "two \u00e9"], pa.large_string()),
    "bytes": pa.array([b"three", b"four"], pa.binary()),
    "day": pa.array([0, 1], pa.date32()),
    "small": pa.array([-3, 200], pa.int16()),
    "large_list": pa.array([[{"role": "user", "content": "Hi"}], []], pa.large_list(message)),
    "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
})
pq.write_table(types, here / "types.parquet")
