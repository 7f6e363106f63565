#!/usr/bin/env python3
"""Runs octet as two NCCL ranks on one GPU and compares the results. For correctness only: two ranks that share a GPU
take turns, so their speed says nothing.

    scripts/check_gpu_ranks.py build/release/octet

NCCL refuses two ranks on one GPU unless it takes them for two hosts (NCCL_HOSTID). Exits 1 if anything differs.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

MODES = ["none", "zero1", "zero2", "fsdp_full"]
RECIPES = ["bf16", "delayed", "current", "block"]
STEPS = 6
TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}, said the {i % 13}th of them.\n" for i in range(3000))


def flags(folder, name, recipe, changes):
    values = {"dataset": "text.txt", "model_preset": "llama-tiny", "device": "cuda", "deterministic": "true",
              "max_seq_length": "128", "max_steps": str(STEPS), "per_device_train_batch_size": "1",
              "eval_batches": "2", "progress": "plain", "use_tensorboard": "false", "run_name": name,
              "save_steps": "3", "logging_steps": "1", "gradient_reduce_dtype": "fp32"}
    if recipe == "bf16":
        values["mixed_precision"] = "bf16"
    else:
        values |= {"mixed_precision": "fp8", "fp8_recipe": recipe}
    values |= changes
    return ["train"] + [f"--{key}={value}" for key, value in values.items()]


def start(octet, folder, arguments, rank, ranks, job):
    variables = dict(os.environ, OCTET_RANK=str(rank), OCTET_RANKS=str(ranks), OCTET_LOCAL_RANK=str(rank),
                     OCTET_LOCAL_RANKS=str(ranks), OCTET_JOB=job, OCTET_MASTER="127.0.0.1", OCTET_SHARE_GPU="1",
                     NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    return subprocess.Popen([octet, *arguments], cwd=folder, env=variables, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def losses(folder, name):
    records = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["loss"], r["grad_norm"]) for r in records if "loss" in r]


def run_ranks(octet, folder, name, recipe, changes, ranks=2):
    processes = [start(octet, folder, flags(folder, name, recipe, changes), r, ranks, name) for r in range(ranks)]
    outputs = [p.communicate(timeout=300)[0] for p in processes]
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            print(f"{name}: rank {rank} ended with {process.returncode}\n{outputs[rank][-3000:]}")
            return None
    return losses(folder, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octet", nargs="?", default="build/release/octet")
    octet = str(pathlib.Path(parser.parse_args().octet).resolve())
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text.txt").write_text(TEXT)
        for recipe in RECIPES:
            alone = subprocess.run([octet, *flags(folder, f"one-{recipe}", recipe, {"gradient_accumulation_steps": "2"})],
                                   cwd=folder, capture_output=True, text=True)
            reference = losses(folder, f"one-{recipe}") if alone.returncode == 0 else []
            first = None
            for mode in MODES:
                result = run_ranks(octet, folder, f"{recipe}-{mode}", recipe, {"sharding_mode": mode})
                if result is None:
                    faults += 1
                    continue
                first = first or result
                same = result == first
                worst = max(abs(a[1] - b[1]) for a, b in zip(result, reference)) if reference else float("nan")
                close = worst < 2e-2
                faults += not same or not close
                print(f"{recipe:8} {mode:10} last loss {result[-1][1]:.6f}  same bits as none: {same}  "
                      f"largest difference from one rank: {worst:.1e}", flush=True)
        result = run_ranks(octet, folder, "lora", "delayed", {"sharding_mode": "fsdp_full", "finetuning_type": "lora"})
        print(f"lora     fsdp_full  {'ran' if result else 'FAILED'}")
        faults += result is None
        # A rank that dies ends the other one.
        arguments = flags(folder, "killed", "delayed", {"max_steps": "100000", "save_steps": "5", "eval_steps": "0"})
        processes = [start(octet, folder, arguments, r, 2, "killed") for r in range(2)]
        deadline = time.time() + 120
        path = folder / "runs" / "killed" / "metrics.jsonl"
        while time.time() < deadline and not (path.exists() and len(path.read_text().splitlines()) > 20):
            time.sleep(0.2)
        processes[1].send_signal(signal.SIGKILL)
        killed = time.time()
        try:
            output = processes[0].communicate(timeout=100)[0]
            seconds = time.time() - killed
            good = processes[0].returncode == 75 and "rank 1" in output
            print(f"kill     rank 0 ended {seconds:.1f} s later with {processes[0].returncode}: {'good' if good else output[-2000:]}")
            faults += not good
        except subprocess.TimeoutExpired:
            processes[0].kill()
            print("kill     rank 0 did not end within 100 s")
            faults += 1
        processes[1].communicate()
    print("ranks: all good" if faults == 0 else f"ranks: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
