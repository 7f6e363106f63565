#!/usr/bin/env python3
"""Checks that includes under src/ follow the dependency direction of octet:

    base <- tensor <- ops <- backend, precision <- model
    dist (groups of ranks) sees ops; io and report see base and tensor; data also sees io, because it maps its files with it,
    and report, because it replaces files with it
    config (the keys), data <- import (configurations of other programs); data <- eval (multiple-choice tasks)
    config (the keys) <- hf (Hugging Face folders), generate <- checkpoint, demo <- plan (from keys to a planned run)
    <- train (what happens during training) <- bench <- doctor (checks of the machine) <- apps
    config, checkpoint <- compare (runs next to each other) <- apps
    dist, model <- step (a training step, also over ranks) <- config, train
    plan, train <- session (the library) <- apps
    base <- submit (batch scripts); config, import, io, report <- sweep (many runs of one configuration)

and that CUDA headers are included only under backend/cuda and in dist's NCCL file.
Usage: check_includes.py REPOSITORY. Prints each include that breaks the rule; exits 1 if there is one.
"""
import pathlib
import re
import sys

# Three wings. The core is what a training step is made of: it knows no key, no file and no console. The run is everything
# else that `octet train` does. Tools look at runs, or prepare them.
CORE = {"base", "tensor", "ops", "precision", "backend", "dist", "model", "step"}
RUN = {"data", "io", "report", "config", "hf", "generate", "eval", "checkpoint", "demo", "plan", "train", "session"}
TOOLS = {"import", "compare", "submit", "sweep", "bench", "doctor"}

FOUNDATION = {"base", "tensor", "ops", "precision", "model", "data", "io", "report"}
ALLOWED = {
    "base": {"base"},
    "tensor": {"base", "tensor"},
    "ops": {"base", "tensor", "ops"},
    "backend": {"base", "tensor", "ops", "dist", "backend"},
    "precision": {"base", "tensor", "ops", "precision"},
    "dist": {"base", "tensor", "ops", "dist"},
    "model": {"base", "tensor", "ops", "precision", "model"},
    "step": {"base", "tensor", "ops", "precision", "dist", "model", "step"},
    "data": {"base", "tensor", "io", "data"},
    "io": {"base", "tensor", "io"},
    "report": {"base", "tensor", "io", "report"},
    "config": FOUNDATION | {"step", "config"},
    "hf": FOUNDATION | {"hf"},
    "generate": FOUNDATION | {"generate"},
    "eval": {"base", "data", "eval"},
    "checkpoint": FOUNDATION | {"dist", "config", "hf", "checkpoint"},
    "demo": FOUNDATION | {"generate", "demo"},
    "plan": FOUNDATION | {"backend", "dist", "step", "config", "hf", "generate", "checkpoint", "plan"},
    "train": FOUNDATION | {"dist", "step", "config", "hf", "generate", "checkpoint", "demo", "plan", "eval", "train"},
    "session": FOUNDATION | {"dist", "step", "config", "hf", "generate", "checkpoint", "plan", "train", "session"},
    "import": {"base", "data", "config", "import"},
    "compare": FOUNDATION | {"config", "checkpoint", "compare"},
    "submit": {"base", "submit"},
    "sweep": {"base", "config", "import", "io", "report", "submit", "sweep"},
    "bench": FOUNDATION | {"backend", "dist", "step", "config", "plan", "train", "bench"},
    "doctor": FOUNDATION | {"backend", "dist", "step", "config", "import", "checkpoint", "plan", "train", "bench", "doctor"},
}
for room, seen in ALLOWED.items():
    knows = CORE if room in CORE else CORE | RUN if room in RUN else CORE | RUN | TOOLS
    assert seen <= knows, f"{room} may not know {seen - knows}"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|nvtx|nvml)")


def check(root: pathlib.Path) -> list[str]:
    faults = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        place = path.relative_to(root / "src")
        room = place.parts[0]
        may_use_cuda = place.parts[:2] == ("backend", "cuda") or place.name.startswith("nccl")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, header = match.group(1) == '"', match.group(2)
            where = f"src/{place}:{number}"
            if quoted:
                target = header.split("/")[0]
                if (root / "include" / header).exists():
                    continue
                if target not in ALLOWED:
                    faults.append(f"{where}: '{header}' is not a path below src/")
                elif target not in ALLOWED.get(room, set()):
                    faults.append(f"{where}: {room} may not include {target} ({header})")
            elif CUDA_HEADER.match(header) and not may_use_cuda:
                faults.append(f"{where}: CUDA header <{header}> outside backend/cuda")
    return faults


def main() -> int:
    faults = check(pathlib.Path(sys.argv[1]))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
