#!/usr/bin/env python3
"""Writes tests/golden/fp8/*: the FP8 conversions of ml_dtypes, as an oracle independent of octet's code.

Conversion to FP8 (E4M3 is float8_e4m3fn, E5M2 is float8_e5m2): round to nearest even, subnormals kept, -0 kept, and
saturating: a finite value beyond the largest (448, 57344) and +-Inf become +-largest. NaN becomes 0x7F in both formats,
whatever its sign and payload, as the GPU's cvt.rn.satfinite does. ml_dtypes does not saturate, so values are clamped to
+-largest before the conversion; nothing else changes, because a value above the largest rounds to it or overflows.

Files, multi-byte values little-endian:
  bf16_to_e4m3.bin, bf16_to_e5m2.bin   65536 bytes; byte i is the FP8 code of the bfloat16 with bit pattern i
  e4m3_to_f32.bin, e5m2_to_f32.bin, e8m0_to_f32.bin   256 float32; entry i is the value of code i. NaN entries: compare
      as NaN, not by bits. E8M0: code i is 2^(i-127) (code 0 is the subnormal 2^-127), 255 is NaN
  f32_blocks.txt   64 lines "block inputs e4m3 e5m2": FNV-1a 64 hashes (16 hex digits) of the input bytes (65536 uint32,
      little-endian) and of the 65536 output bytes in each format, for the inputs defined here

Inputs: block b in 0..63, index i in 0..65535, as float32 bit patterns. All arithmetic is on unsigned integers.
  splitmix64(n): z = (n + 1) * 0x9E3779B97F4A7C15;  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
                 z = (z ^ (z >> 27)) * 0x94D049BB133111EB;  return z ^ (z >> 31)          (all modulo 2^64)
  r    = splitmix64(65536 * b + i)
  sign = (i & 1) << 31
  grid = ((i >> 15) << 31) | ((96 + ((i >> 9) & 63)) << 23) | (((i >> 4) & 31) << 18)
         every float of five fraction bits and exponent -31..32: holds all values and all ties of both formats
  block    bits
   0..31   r & 0xFFFFFFFF                                                 any float, NaN and Inf included
  32..47   (r & 0x807FFFFF) | ((107 + ((r >> 32) mod 40)) << 23)          magnitudes 2^-20 up to 2^20
  48       grid + (i & 15) - 8                                            the grid and its nearest neighbours
  49       grid + 2^((i >> 1) & 7)      if i is even, else  grid - 2^((i >> 1) & 7)
  50       grid + 2^(8 + ((i >> 1) & 7)) if i is even, else  grid - 2^(8 + ((i >> 1) & 7))
  51..56   (i << 16) | {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF}[b - 51]     every bfloat16, and floats next to it
  57       sign | (r & 0x007FFFFF)                                        float32 subnormals
  58       sign | 0x7F800000 | ((i >> 1) << 8) | ((i >> 1) & 255)         +-Inf (i = 0, 1), then NaNs of all payloads
  59..62   sign | ({0x43E00000, 0x43E80000, 0x47600000, 0x47700000}[b - 59] - 16384 + (i >> 1))
                   around 448, 464 (the tie above it), 57344, 61440 (the tie above it)
  63       sign | (((i >> 1) & 1 ? 0x37000000 : 0x3A800000) - 8192 + (i >> 2))
                   around half the smallest subnormals: 2^-17 (E5M2) and 2^-10 (E4M3)

  FNV-1a 64: h = 0xCBF29CE484222325; for each byte: h = (h ^ byte) * 0x100000001B3 modulo 2^64

    make_fp8_goldens.py [--out tests/golden/fp8]      write the files
    make_fp8_goldens.py --check                       recompute and compare with the stored files, write nothing

Needs: numpy, ml_dtypes. If torch is installed, its conversions are compared too.
"""
import argparse
import pathlib
import sys

import ml_dtypes
import numpy as np

BLOCKS, BLOCK_SIZE = 64, 65536
NAN_CODE = 0x7F
FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def splitmix64(n: np.ndarray) -> np.ndarray:
    z = (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def block_inputs(b: int) -> np.ndarray:
    """The bit patterns of block b, as the header of this file defines them."""
    i = np.arange(BLOCK_SIZE, dtype=np.int64)
    random = splitmix64(np.uint64(BLOCK_SIZE * b) + i.astype(np.uint64))
    r, r_high = (random & np.uint64(0xFFFFFFFF)).astype(np.int64), (random >> np.uint64(32)).astype(np.int64)
    sign = (i & 1) << 31
    grid = ((i >> 15) << 31) | ((96 + ((i >> 9) & 63)) << 23) | (((i >> 4) & 31) << 18)
    direction = 1 - 2 * (i & 1)
    if b < 32:
        bits = r
    elif b < 48:
        bits = (r & 0x807FFFFF) | ((107 + r_high % 40) << 23)
    elif b == 48:
        bits = grid + (i & 15) - 8
    elif b < 51:
        bits = grid + direction * (1 << (8 * (b - 49) + ((i >> 1) & 7)))
    elif b < 57:
        bits = (i << 16) | (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)[b - 51]
    elif b == 57:
        bits = sign | (r & 0x007FFFFF)
    elif b == 58:
        bits = sign | 0x7F800000 | ((i >> 1) << 8) | ((i >> 1) & 255)
    elif b < 63:
        bits = sign | ((0x43E00000, 0x43E80000, 0x47600000, 0x47700000)[b - 59] - 16384 + (i >> 1))
    else:
        bits = sign | (np.where((i >> 1) & 1, 0x37000000, 0x3A800000) - 8192 + (i >> 2))
    assert bits.min() >= 0 and bits.max() < 2**32
    return bits.astype("<u4")


def to_fp8(bits: np.ndarray, name: str) -> np.ndarray:
    """float32 bit patterns -> FP8 codes, saturating."""
    dtype = FORMATS[name]
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    values = bits.view("<f4")
    with np.errstate(invalid="ignore"):  # NaN inputs; their codes are set below
        codes = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(NAN_CODE), codes)


def fnv1a64(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def from_fp8(dtype) -> bytes:
    return np.arange(256, dtype=np.uint8).view(dtype).astype("<f4").tobytes()


def compare_with_torch() -> str:
    """ml_dtypes against torch, over every input of the files."""
    try:
        import torch
    except ImportError:
        return "torch not found: not compared"
    torch_types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    for b in range(BLOCKS):
        bits = block_inputs(b)
        values = torch.from_numpy(bits.view("<f4").copy())
        for name, dtype in torch_types.items():
            largest = torch.finfo(dtype).max
            codes = values.clamp(-largest, largest).to(dtype).view(torch.uint8)
            codes[values.isnan()] = NAN_CODE
            different = np.flatnonzero(codes.numpy() != to_fp8(bits, name))
            if different.size:
                raise SystemExit(f"torch differs: block {b}, {name}, {different.size} inputs, first {different[0]}")
    return f"torch {torch.__version__} agrees on all {BLOCKS * BLOCK_SIZE} inputs"


def make_files() -> dict[str, bytes]:
    bf16_bits = (np.arange(65536, dtype=np.uint32) << 16).astype("<u4")
    files = {f"bf16_to_{name}.bin": to_fp8(bf16_bits, name).tobytes() for name in FORMATS}
    files |= {f"{name}_to_f32.bin": from_fp8(dtype) for name, dtype in FORMATS.items()}
    files["e8m0_to_f32.bin"] = from_fp8(ml_dtypes.float8_e8m0fnu)
    lines = []
    for b in range(BLOCKS):
        bits = block_inputs(b)
        hashes = [fnv1a64(bits.tobytes())] + [fnv1a64(to_fp8(bits, name).tobytes()) for name in FORMATS]
        lines.append(f"{b} " + " ".join(f"{h:016x}" for h in hashes) + "\n")
    files["f32_blocks.txt"] = "".join(lines).encode()
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_out = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/fp8"
    parser.add_argument("--out", type=pathlib.Path, default=default_out)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    print(compare_with_torch())
    files = make_files()
    faults = 0
    for name, content in files.items():
        path = args.out / name
        if args.check:
            if path.read_bytes() != content:
                print(f"{name} differs from what ml_dtypes {ml_dtypes.__version__} gives")
                faults += 1
        else:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(f"wrote {name}: {len(content)} bytes")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
