#!/usr/bin/env python3
"""Trains the demo model in a process that is killed again and again, on a disk that is full now and then, and compares
the result with a run that was left alone. Exits 1 if anything differs.

    scripts/soak.py --octet build/release/octet
    scripts/soak.py --octet build/release/octet --steps 300 --seed 7 --kill_every 2 --full_disk off

Every process gets the same command, with --resume latest. Most end by SIGKILL, at a random moment or while a checkpoint
is being written. Some get SIGTERM, a few of these SIGKILL as well. Checked after every process: its exit code, its
message if the disk was full, that no finished checkpoint was lost, and the checksums of all checkpoints. At the end:
weights, moments, FP8 scales and state bit for bit, every step of metrics.jsonl once, the evaluations, and that nothing
temporary is left.

A full disk is a small tmpfs that a ballast file fills (needs root). Without root, a limit on the size of files takes
its place.
"""
import argparse
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

RUN = pathlib.Path("runs/soak")
CHECKPOINTS = RUN / "checkpoints_fp8"
KEPT = 3  # save_total_limit; the best may come on top
DONE, WRONG_START, SAVE_FAILED, REQUEUE = 0, 2, 4, 75
EXACT_FILES = ["model.safetensors", "optimizer.safetensors", "fp8_state.bin", "config.json", "train_config.yaml"]
EXACT_FIELDS = ["step", "epoch", "loss", "lr", "grad_norm", "tokens"]
# metrics.N.jsonl: records of processes that ended before the first checkpoint.
RUN_FILES = re.compile(r"config\.yaml|plan\.json|metrics(\.\d+)?\.jsonl|last_checkpoint|run\.lock|events\.out\.tfevents\..*")
FULL_MESSAGES = re.compile(r"No space left on device|File too large|only .* are free where output_dir is")


class Failure(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failure(text)


def command(options, resume):
    values = {"max_steps": options.steps, "save_steps": options.save_steps, "seed": options.seed, "run_name": "soak",
              "device": "cpu", "num_threads": 1, "per_device_train_batch_size": options.batch,
              "max_seq_length": options.length, "eval_batches": 2, "eval_steps": 0, "logging_steps": 1,
              "sample_steps": 0, "save_total_limit": KEPT, "warmup_steps": min(50, options.steps // 10), "progress": "plain"}
    if resume:
        values["resume"] = "latest"
    return [options.octet, "train"] + [f"--{key}={value}" for key, value in values.items()]


def environment():
    return {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS" and "WANDB" not in key}


class Disk:
    """Where the killed run writes, and how it gets full."""

    def __init__(self, folder, kind, size):
        self.folder = folder
        self.size = size
        self.kind = kind
        self.mounted = False
        self.ballast = folder / "ballast"
        folder.mkdir()
        if kind in ("auto", "tmpfs"):
            mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "soak", str(folder)],
                                   capture_output=True, text=True)
            self.mounted = mount.returncode == 0
            expect(self.mounted or kind == "auto", f"a tmpfs cannot be mounted: {mount.stderr.strip()}")
            self.kind = "tmpfs" if self.mounted else "limit"

    def describe(self):
        return {"tmpfs": f"a tmpfs of {self.size >> 20} MiB, filled with a ballast file",
                "limit": "a limit on the size of files", "off": "never full"}[self.kind]

    def fill(self, process, room):
        """Leaves about `room` bytes."""
        if self.kind == "limit":
            self.limit(process, room)
            return
        with open(self.ballast, "wb") as file:
            while True:
                status = os.statvfs(self.folder)
                more = status.f_bavail * status.f_frsize - room
                size = os.fstat(file.fileno()).st_size
                if more <= 0:
                    break
                try:
                    os.posix_fallocate(file.fileno(), size, more)
                    break
                except OSError:  # the run took some of it in between
                    continue

    def free(self, process):
        if self.kind == "limit":
            self.limit(process, resource.RLIM_INFINITY)
        elif self.ballast.exists():
            self.ballast.unlink()

    def limit(self, process, size):
        # A process that has ended but was not waited for still has limits.
        if process and process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def close(self):
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)
            self.mounted = False


def metrics(folder):
    lines = []
    try:
        text = (folder / RUN / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return lines
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # the last one of a killed process
            pass
    return lines


def published(folder):
    """The newest checkpoint that has its name, which a resume must find."""
    newest = (-1, 0)
    for manifest in (folder / CHECKPOINTS).glob("step_*/manifest.json"):
        content = json.loads(manifest.read_text())
        newest = max(newest, (content["sequence"], content["step"]))
    return newest[1]


def is_saving(folder):
    try:
        return any(name.startswith(".tmp-step_") for name in os.listdir(folder / CHECKPOINTS))
    except FileNotFoundError:
        return False


class Soak:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.random = random.Random(options.seed)
        self.disk = None
        self.process = None
        self.counts = {}
        self.evaluations_skipped = set()  # a process that is asked to stop does not evaluate
        self.lost_saves = 0
        self.patience = 1.0  # grows while processes end before their first new checkpoint

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def octet(self, folder, *arguments):
        return subprocess.run([self.options.octet, *arguments], cwd=folder, env=environment(), capture_output=True,
                              text=True, errors="replace")

    def run_whole(self):
        whole = self.folder / "whole"
        whole.mkdir()
        began = time.monotonic()
        result = self.octet(whole, *command(self.options, False)[1:])
        expect(result.returncode == DONE, f"the run without kills ended with {result.returncode}:\n{result.stderr}")
        self.whole_seconds = time.monotonic() - began
        if self.options.kill_every == 0:
            self.options.kill_every = self.whole_seconds / (2 * self.options.kills)
        print(f"reference: {self.options.steps} steps in {self.whole_seconds:.1f} s; then a kill every "
              f"{self.options.kill_every:.1f} s", flush=True)

    def choose(self, number, before):
        """What happens to the next process, which continues from step `before`: how it is ended and whether the disk gets full."""
        draw = self.random.random()
        end = "SIGKILL"
        if draw < 0.35:
            end = "SIGKILL in a save"
        elif draw < 0.5:
            end = "SIGTERM"
        elif draw < 0.57:
            end = "SIGTERM, SIGKILL"
        full = ""
        if self.disk.kind != "off":
            draw = self.random.random()
            if draw < 0.06 and self.disk.kind == "tmpfs":
                full = "from the start"
            elif draw < 0.18:
                full = "to the end"
            elif draw < 0.30:
                full = "for a while"
        life = self.options.kill_every * self.random.uniform(0.2, 1.8) * self.patience
        # A short soak has few draws. It is killed often enough all the same: early in a process, if it is behind. (A killed
        # process counts even if it got nowhere, so this ends.)
        if before * (self.options.kills + 2) > self.counts.get("SIGKILL", 0) * self.options.steps:
            end, full, life = "SIGKILL", "", self.options.kill_every * self.random.uniform(0.2, 0.6)
        # And it meets a full disk: from the second process on until one has.
        if self.disk.kind != "off" and number > 1 and not any(what.startswith("full disk") for what in self.counts):
            end, full = "SIGTERM", "to the end"
        return end, full, life

    def wait(self, process, seconds):
        try:
            process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            pass

    def live(self, number):
        """One process from its start to its end. True when the run is done."""
        killed = self.disk.folder
        before = published(killed)
        end, full, life = self.choose(number, before)
        log = self.folder / f"life_{number:04}.txt"
        room = self.random.choice([0, 0, 1 << 16, self.random.randrange(self.checkpoint_bytes)])
        if full == "from the start":
            self.disk.fill(None, room // 2)
        # Another process writes the log: a limit on the size of files must not cut it off.
        with open(log, "w") as out:
            process = subprocess.Popen(command(self.options, True), cwd=killed, env=environment(), stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
            writer = subprocess.Popen(["cat"], stdin=process.stdout, stdout=out)
        process.stdout.close()
        self.process = process
        began = time.monotonic()
        if full in ("to the end", "for a while"):
            self.wait(process, life * self.random.uniform(0.1, 0.6))
            if process.poll() is None:
                self.disk.fill(process, room)
            if full == "for a while":
                self.wait(process, life * self.random.uniform(0.1, 0.5))
                self.disk.free(process)
        self.wait(process, life - (time.monotonic() - began))
        in_save = self.end(process, end, killed)
        seconds = time.monotonic() - began
        writer.wait()
        self.disk.free(None)
        return self.judge(number, log, process.returncode, end, full, before, in_save, seconds)

    def end(self, process, end, killed):
        if process.poll() is not None:
            return False
        if end == "SIGKILL in a save":
            limit = time.monotonic() + 2 * self.options.kill_every * self.patience
            while process.poll() is None and not is_saving(killed) and time.monotonic() < limit:
                time.sleep(0.0005)
            time.sleep(self.random.choice([0, 0.003, 0.01, 0.03]) * self.random.random())
        if end.startswith("SIGTERM"):
            process.send_signal(signal.SIGTERM)
            self.wait(process, self.random.uniform(0, 0.2) if end.endswith("SIGKILL") else 300)
        process.kill()
        process.wait()
        return process.returncode == -signal.SIGKILL and is_saving(killed)

    def judge(self, number, log, code, end, full, before, in_save, seconds):
        killed = self.disk.folder
        text = log.read_text(errors="replace")
        fault = f"process {number} ({end}, disk full: {full or 'no'}), log {log}: "
        after = published(killed)
        lines = metrics(killed)
        resumed = re.search(r"resumed from \S+ after step (\d+)", text)
        if resumed:
            expect(int(resumed[1]) == before,
                   fault + f"resumed from step {resumed[1]}, but the newest checkpoint was that of step {before}")
        expect(after >= before, fault + f"the newest checkpoint was that of step {before} and is now that of {after}")
        expect(" crc" not in text and "not complete" not in text, fault + "a checkpoint was damaged")
        was_full = FULL_MESSAGES.search(text)
        expect(full or not was_full, fault + "a full disk was reported, but the disk was not full")
        self.lost_saves += text.count("was not saved (")
        if code == -signal.SIGKILL:
            expect(end != "SIGTERM", fault + "it did not end in 300 s after SIGTERM")
            self.count("SIGKILL")
            if in_save:
                self.count("SIGKILL while a checkpoint was being written")
        elif code == REQUEUE:
            expect(end.startswith("SIGTERM"), fault + "exit code 75 without a signal")
            self.count("SIGTERM: saved and ended")
            self.evaluations_skipped.add(after)
        elif code == -signal.SIGTERM and end.startswith("SIGTERM") and "ready after" not in text:
            self.count("SIGTERM: ended before the first step")  # nobody waits for a run that has not started
        elif code == SAVE_FAILED:
            expect(full and was_full, fault + "exit code 4, but no message says that the disk is full")
            self.count("full disk: ended with code 4")
        elif code == WRONG_START:
            expect(full and was_full, fault + f"exit code 2, but no message says that the disk is full:\n{text[-2000:]}")
            self.count("full disk: not started")
        elif code != DONE:
            raise Failure(fault + f"exit code {code}:\n{text[-3000:]}")
        if was_full and code not in (SAVE_FAILED, WRONG_START):
            self.count("full disk: survived")
        missing = re.search(r"written late, ([1-9]\d*) are missing", text)
        expect(not missing, fault + "records of metrics.jsonl were lost")
        if (killed / CHECKPOINTS / "latest").exists():
            check = self.octet(killed, "checkpoints", str(RUN), "--verify")
            expect(check.returncode == 0, fault + f"octet checkpoints --verify:\n{check.stdout}{check.stderr}")
        if code == -signal.SIGKILL and not full:
            self.patience = 1.0 if after > before else min(self.patience * 1.5, 20)
        state = {-signal.SIGKILL: "killed in a save" if in_save else "killed"}.get(code, f"exit code {code}")
        print(f"process {number}: from step {before}, {state} after {seconds:.1f} s (planned: {end}), at step "
              f"{lines[-1]['step'] if lines else 0}, saved {after}{', disk full ' + full if full else ''}", flush=True)
        return code == DONE

    def run_killed(self):
        # Room for what the run keeps and one checkpoint that is being written, but not for leftovers of a killed one.
        last = self.folder / "whole" / CHECKPOINTS / f"step_{self.options.steps}"
        self.checkpoint_bytes = sum(file.stat().st_size for file in last.iterdir())
        others = sum(file.stat().st_size for file in (self.folder / "whole" / RUN).iterdir() if file.is_file())
        size = (KEPT + 2) * self.checkpoint_bytes + 4 * others + (2 << 20)
        self.disk = Disk(self.folder / "killed", self.options.full_disk, size)
        print(f"disk: {self.disk.describe()}", flush=True)
        number = 1
        while not self.live(number):
            number += 1
            expect(number < 100 * max(10, self.options.kills) + self.options.steps, "the run does not come to its end")
        self.count_processes = number

    def compare(self):
        whole, killed = self.folder / "whole", self.disk.folder
        last = f"step_{self.options.steps}"
        for name in EXACT_FILES:
            a, b = ((folder / CHECKPOINTS / last / name).read_bytes() for folder in (whole, killed))
            expect(a == b, f"{last}/{name} has other bytes than that of the run without kills")
        states = [json.loads((folder / CHECKPOINTS / last / "state.json").read_text()) for folder in (whole, killed)]
        if self.lost_saves or self.evaluations_skipped:  # the best evaluation may have had no checkpoint
            for state in states:
                state.pop("best_eval", None)
        expect(states[0] == states[1], f"{last}/state.json differs")
        self.compare_metrics(metrics(whole), metrics(killed))
        self.check_leftovers(whole, killed)
        self.check_events(killed)
        before = self.contents(killed)
        again = self.octet(killed, *command(self.options, True)[1:])
        expect(again.returncode == DONE and "nothing is left to train" in again.stdout,
               f"the finished run does not say so: {again.returncode} {again.stdout}{again.stderr}")
        expect(self.contents(killed) == before, "resuming the finished run changed its files")

    def compare_metrics(self, whole, killed):
        steps = [record["step"] for record in killed]
        for record in (whole, killed):
            expect([r["step"] for r in record] == list(range(1, self.options.steps + 1)),
                   "metrics.jsonl does not have every step once, in order: missing "
                   f"{sorted(set(range(1, self.options.steps + 1)) - set(steps))[:20]}, "
                   f"twice {sorted({s for s in steps if steps.count(s) > 1})[:20]}")
        evaluations = 0
        for a, b in zip(whole, killed):
            for field in EXACT_FIELDS:
                expect(a[field] == b[field], f"step {a['step']}: {field} is {b[field]}, expected {a[field]}")
            if a["step"] not in self.evaluations_skipped or "eval_loss" in b:
                expect(a.get("eval_loss") == b.get("eval_loss"),
                       f"step {a['step']}: eval_loss is {b.get('eval_loss')}, expected {a.get('eval_loss')}")
                evaluations += "eval_loss" in a
        self.evaluations = evaluations

    def check_leftovers(self, whole, killed):
        for path in (killed / RUN).iterdir():
            expect(path.is_dir() or RUN_FILES.fullmatch(path.name), f"left over: {path}")
        expected = {path.name for path in (whole / CHECKPOINTS / f"step_{self.options.steps}").iterdir()}
        folders = 0
        for path in (killed / CHECKPOINTS).iterdir():
            if path.name in ("latest", "best"):
                continue
            expect(re.fullmatch(r"step_\d+", path.name), f"left over: {path}")
            folders += 1
            names = {file.name for file in path.iterdir()}
            expect(names == expected, f"{path} holds {sorted(names)}, expected {sorted(expected)}")
        expect(2 <= folders <= KEPT + 1, f"{folders} checkpoints are kept, expected at most save_total_limit and the best")
        expect({path.name for path in killed.iterdir()} == {"runs"}, f"left over in {killed}")

    def check_events(self, killed):
        """TensorBoard files may end in the middle of a record, and nowhere else. The count is that of whole records."""
        self.events = 0
        for path in (killed / RUN).glob("events.out.tfevents.*"):
            data, at = path.read_bytes(), 0
            while at + 12 <= len(data):
                (length,) = struct.unpack_from("<Q", data, at)
                expect(length < 1 << 24, f"{path}: a record of {length} bytes at {at}")
                at += 16 + length
                self.events += at <= len(data)

    def contents(self, folder):
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}

    def summary(self):
        print(f"\nthe same bits after {self.options.steps} steps: {', '.join(EXACT_FILES)}, state.json")
        print(f"metrics.jsonl: {self.options.steps} steps, each once, equal; {self.evaluations} evaluations equal; "
              f"{self.events} whole TensorBoard records")
        print(f"{self.count_processes} processes:", "; ".join(f"{what} {n}" for what, n in sorted(self.counts.items())))
        print(f"checkpoints that could not be saved because of a full disk: {self.lost_saves}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default="build/release/octet", help="the program [%(default)s]")
    parser.add_argument("--steps", type=int, default=2000, help="steps of training [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the training and of what happens to it [%(default)s]")
    parser.add_argument("--kill_every", type=float, default=4.0,
                        help="mean seconds that a process lives; 0: so that there are --kills of them [%(default)s]")
    parser.add_argument("--kills", type=int, default=4, help="fail if there were fewer SIGKILLs [%(default)s]")
    parser.add_argument("--full_disk", choices=["auto", "tmpfs", "limit", "off"], default="auto",
                        help="auto: tmpfs if it can be mounted, else limit [%(default)s]")
    parser.add_argument("--save_steps", type=int, default=10, help="steps between checkpoints [%(default)s]")
    parser.add_argument("--batch", type=int, default=2, help="sequences per step [%(default)s]")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence [%(default)s]")
    parser.add_argument("--folder", help="a new folder for both runs, kept [a temporary one, kept after a failure]")
    options = parser.parse_args()
    for name in ("steps", "save_steps", "batch", "length", "kills"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected 1 or more")
    if options.kill_every < 0:
        parser.error(f"--kill_every is {options.kill_every}; expected 0 or more")
    if options.folder and pathlib.Path(options.folder).exists():
        parser.error(f"--folder: {options.folder} exists already")
    if not shutil.which(options.octet):
        parser.error(f"--octet: there is no program {options.octet}; build it, or name another")
    options.octet = str(pathlib.Path(shutil.which(options.octet)).resolve())
    if options.folder:
        pathlib.Path(options.folder).mkdir(parents=True)
    folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="octet-soak-")).resolve()
    soak = Soak(options, folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the clean-up below
    began = time.monotonic()
    passed = False
    try:
        soak.run_whole()
        soak.run_killed()
        soak.compare()
        kills = soak.counts.get("SIGKILL", 0)
        expect(kills >= options.kills, f"the bits are equal, but only {kills} of at least {options.kills} processes got SIGKILL; "
               "choose a smaller --kill_every or more --steps")
        soak.summary()
        passed = True
    except Failure as failure:
        print(f"soak: FAILED: {failure}", file=sys.stderr)
    finally:
        if soak.process and soak.process.poll() is None:
            soak.process.kill()
            soak.process.wait()
        if soak.disk and not passed and soak.disk.mounted:
            shutil.copytree(soak.disk.folder, folder / "killed-copy", ignore=shutil.ignore_patterns("ballast"))
        if soak.disk:
            soak.disk.close()
        if passed and not options.folder:
            shutil.rmtree(folder)
        else:
            print(f"files: {folder}")
    print(f"soak: {'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
