"""Sends a run of octet to Weights & Biases: follows the run's metrics.jsonl in a process of its own.

octet starts it with these file descriptors:
  0  control: a line "end CODE" when the run has ended; the end of the file without it means that octet was killed
  1  status, one line each: "beat", "info TEXT", "warning TEXT", and "problem TEXT" before it gives up
  2  log file: what this program and wandb print
  4  the job, as JSON: see Job
The exit code is 0 if everything was handed to wandb.
"""
import dataclasses
import fcntl
import html
import json
import math
import os
import secrets
import select
import signal
import string
import sys
import threading
import time
import traceback

POLL_SECONDS = 0.5
KEPT_SAMPLES = 100
# More tensors than this would be thousands of charts: they are only in the histograms.
TENSORS_WITH_CHARTS = 48
EXIT_REQUEUE = 75

NAMES = {
    "epoch": "train/epoch",
    "loss": "train/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "eval_loss": "eval/loss",
    "memory_bytes": "train/memory_bytes",
    "fp8_fwd_scale": "fp8/fwd_scale",
    "fp8_bwd_scale": "fp8/bwd_scale",
}


class Problem(Exception):
    """One line for the user says enough."""


@dataclasses.dataclass
class Job:
    folder: str  # of the run
    mode: str  # online or offline
    run_name: str
    project: str = ""
    entity: str = ""
    wandb_run_name: str = ""
    config: dict = dataclasses.field(default_factory=dict)
    live: bool = True  # the run is going on: system figures are worth recording
    pid: int = 0  # of the run
    again: bool = False  # send everything once more, as a new run
    max_steps: int = 0  # of a run that is not in octet's process: a run that has done them has finished; 0: not known


class Status:
    """Lines to octet. A closed pipe is no reason to stop: the run must still be finished."""

    def __init__(self):
        self.lock = threading.Lock()
        self.file = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        os.dup2(2, 1)  # nothing that wandb prints may get between the lines

    def say(self, kind, text=""):
        line = f"{kind} {' '.join(str(text).split())}".rstrip()
        with self.lock:
            try:
                print(line, file=self.file, flush=True)
            except OSError:
                pass

    def start_beating(self):
        def beat():
            while True:
                self.say("beat")
                threading.Event().wait(1.0)

        threading.Thread(target=beat, daemon=True).start()


class Control:
    """Says when the run has ended, and how."""

    def __init__(self):
        self.rest = b""
        self.code = None
        self.died = False

    def wait(self, seconds):
        """True once the run has ended."""
        if self.code is not None:
            return True
        ready, _, _ = select.select([0], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(0, 4096)
        except ConnectionError:  # octet was killed
            data = b""
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            if line.startswith(b"end "):
                self.code = int(line[4:])
        if not data and self.code is None:
            self.died = True
            self.code = 1
        return self.code is not None


class MetricsFile:
    """The new records of metrics.jsonl. A resumed run replaces the file by a shorter one: it is then read anew."""

    def __init__(self, path):
        self.path = path
        self.file = None
        self.rest = b""
        self.line = 0
        self.last_step = 0

    def read(self):
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return
        if self.file is not None:
            opened = os.fstat(self.file.fileno())
            if opened.st_ino != now.st_ino or now.st_size < self.file.tell():
                self.file.close()
                self.file = None
        if self.file is None:
            self.file = open(self.path, "rb")
            self.rest = b""
            self.line = 0
        # A line without its newline is still being written.
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        for line in lines:
            self.line += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                record["step"] = int(record["step"])
            except (ValueError, KeyError, TypeError):
                raise Problem(f"{self.path}:{self.line} is not a record of a step: {line[:60]!r}")
            self.last_step = record["step"]
            yield record


def number(record, name):
    """The field as a number; NaN and infinity stand in a second field. None if it is no number."""
    value = record.get(name)
    if value is None:
        text = record.get(name + "_text")
        return float(text) if text in ("nan", "inf", "-inf") else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value


def numbers_of(record):
    """The names in W&B and the values of all numbers in a record."""
    figures = {"train/global_step": record["step"]}
    if number(record, "time") is not None:
        figures["_timestamp"] = record["time"]  # a finished run keeps its times
    for name, field in record.items():
        if name in ("step", "time") or name.endswith("_text"):
            continue
        if name in ("gpu", "tasks", "checkpoint") and isinstance(field, dict):
            for key in field:
                value = number(field, key)
                if value is not None:
                    figures[f"{name}/{key}"] = value
            continue
        value = number(record, name)
        if value is None:
            continue
        if name.startswith("eval_loss/"):
            figures["eval/loss/" + name[len("eval_loss/") :]] = value
        else:
            figures[NAMES.get(name, "train/" + name)] = value
    return figures


def histogram(values, bins=32):
    """(counts, edges) as wandb.Histogram takes them, without numpy."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / bins
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / width), bins - 1)] += 1
    return counts, [low + i * width for i in range(bins + 1)]


def fp8_of(wandb, tensors):
    """Histograms over all tensors, the extremes and, if there are few tensors, a value per tensor."""
    figures = {}
    if not isinstance(tensors, dict):
        return figures
    columns = {}
    for tensor, fields in tensors.items():
        if not isinstance(fields, dict):
            continue
        for name in fields:
            value = number(fields, name)
            if value is not None and math.isfinite(value):
                columns.setdefault(name, {})[tensor] = value
    for name, by_tensor in columns.items():
        values = list(by_tensor.values())
        # Scales and maxima span many powers of two.
        if name in ("amax", "scale"):
            positive = [math.log2(value) for value in values if value > 0]
            if positive:
                figures[f"fp8/log2_{name}"] = wandb.Histogram(np_histogram=histogram(positive))
        else:
            figures[f"fp8/{name}"] = wandb.Histogram(np_histogram=histogram(values))
        figures[f"fp8/{name}_max"] = max(values)
        figures[f"fp8/{name}_min"] = min(values)
        if len(tensors) <= TENSORS_WITH_CHARTS and name in ("amax", "scale"):
            for tensor, value in by_tensor.items():
                figures[f"fp8/{name}/{tensor}"] = value
    return figures


class State:
    """wandb.json in the folder of the run: the id, the last step that was handed over in each mode, and how the run ended."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "wandb.json")
        self.values = {}
        try:
            with open(self.path, encoding="utf-8") as file:
                self.values = json.load(file)
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise Problem(f"{self.path} cannot be read ({error}); remove it to send the run under a new id")
        if not isinstance(self.values, dict):
            raise Problem(f"{self.path} holds no JSON object; remove it to send the run under a new id")

    def save(self):
        temporary = f"{self.path}.tmp-{secrets.token_hex(8)}"
        with open(temporary, "x", encoding="utf-8") as file:
            json.dump(self.values, file, indent=1)
            file.write("\n")
        os.replace(temporary, self.path)

    def last_step(self, mode):
        return int(self.values.get("last_step", {}).get(mode, 0))

    def sent(self, mode, step):
        self.values.setdefault("last_step", {})[mode] = step

    def ended(self, step, code):
        self.values["end"] = {"step": step, "exit_code": code}

    def exit_code(self, step):
        """How the run ended at this step; None if that is not known, as after more steps without W&B."""
        end = self.values.get("end", {})
        return end.get("exit_code") if end.get("step") == step else None


class Sender:
    def __init__(self, wandb, job, status):
        self.wandb, self.job, self.status = wandb, job, status
        self.metrics = MetricsFile(os.path.join(job.folder, "metrics.jsonl"))
        self.samples = {}  # by step
        self.flags = set()
        self.precision = None
        self.state = State(job.folder)
        if job.again:
            self.state.values = {name: value for name, value in self.state.values.items() if name == "end"}
        self.mode = job.mode
        self.run = None
        self.count = 0
        self.last_step = 0

    def settings(self):
        values = {"console": "off", "disable_git": True, "x_save_requirements": False, "program": "octet"}
        if self.job.live and self.job.pid:
            values["x_stats_pid"] = self.job.pid
        else:
            values["x_disable_stats"] = True
        # A newer wandb may have dropped a private one.
        known = getattr(self.wandb.Settings, "model_fields", values)
        return self.wandb.Settings(**{name: value for name, value in values.items() if name in known})

    def init(self):
        job, environ = self.job, os.environ
        run_id = self.state.values.get("id")
        if not run_id and job.live:  # of one run only: 'octet wandb' may send many
            run_id = environ.get("WANDB_RUN_ID")
        run_id = run_id or new_id()
        options = {
            "id": run_id,
            "resume": "allow",
            "project": job.project or environ.get("WANDB_PROJECT") or "octet",
            "entity": job.entity or None,
            "name": job.wandb_run_name or environ.get("WANDB_NAME") or job.run_name,
            "dir": environ.get("WANDB_DIR") or job.folder,
            "config": job.config,
            "settings": self.settings(),
        }
        try:
            self.run = self.wandb.init(mode=self.mode, **options)
        except Exception as error:  # wandb has many: no network, a wrong key, no such project
            if self.mode != "online":
                raise
            self.status.say("warning", f"W&B refused or was not reached, so the run is recorded offline: {error}")
            self.mode = "offline"
            self.wandb.teardown()  # its service holds the id of the first attempt
            self.run = self.wandb.init(mode=self.mode, **options)
        run = self.run
        run.define_metric("train/global_step", hidden=True)
        run.define_metric("*", step_metric="train/global_step")
        run.define_metric("eval/loss", step_metric="train/global_step", summary="min")
        if self.mode == "online":
            # What the server has counts, not what was handed over: a sender may have been killed before it was sent.
            # run.step is the step after the server's last one.
            self.last_step = max(run.step - 1, 0) if run.resumed else 0
        else:
            self.last_step = self.state.last_step(self.mode)
        self.state.values.update(id=run_id, project=options["project"])
        self.state.save()
        where = run.url if self.mode == "online" else f"offline in {os.path.dirname(run.dir)}"
        continued = f", continued after step {self.last_step}" if self.last_step else ""
        self.status.say("info", f"W&B: run {run_id}, {where}{continued}")

    def send_new(self):
        before = self.last_step
        for record in self.metrics.read():
            self.note(record)
            step = record["step"]
            if step <= self.last_step:
                continue
            self.run.log(self.figures(record), step=step)
            self.last_step = step
            self.count += 1
        if self.last_step != before:
            self.state.sent(self.mode, self.last_step)
            self.state.save()

    def note(self, record):
        """What is kept of every record, also of those sent earlier: the table of samples is sent whole."""
        if record.get("samples"):
            self.samples[record["step"]] = [str(text) for text in record["samples"]]
            while len(self.samples) > KEPT_SAMPLES:
                del self.samples[min(self.samples)]

    def figures(self, record):
        wandb, step = self.wandb, record["step"]
        figures = numbers_of(record)
        if "fp8" in record:
            figures.update(fp8_of(wandb, record["fp8"]))
        if record.get("samples"):
            rows = [[at, text] for at in sorted(self.samples) if at <= step for text in self.samples[at]]
            figures["samples/table"] = wandb.Table(columns=["step", "text"], data=rows)
            shown = "\n\n".join(self.samples[step])
            figures["samples/latest"] = wandb.Html(f"<pre>{html.escape(shown)}</pre>", inject=False)
        if record.get("precision") and record["precision"] != self.precision:
            self.precision = record["precision"]
            self.run.summary["precision"] = self.precision
        for flag in record.get("red_flags") or []:
            kind, text = str(flag.get("kind", "red flag")), str(flag.get("text", ""))
            figures[f"red_flags/{kind}"] = 1
            if kind not in self.flags:
                self.flags.add(kind)
                self.run.alert(title=f"{kind} at step {step}", text=text)
        return figures

    def recorded_code(self):
        """How a run of another process has ended. One that has not done all its steps and left no word has failed."""
        code = self.state.exit_code(self.metrics.last_step)
        if code is None:
            code = 1 if self.metrics.last_step < self.job.max_steps else 0
        return code

    def finish(self, code):
        if self.job.live:
            self.state.ended(self.metrics.last_step, code)
            self.state.save()
        else:
            code = self.recorded_code()
        if code == EXIT_REQUEUE:
            self.run.mark_preempting()
        folder = os.path.dirname(self.run.dir)
        self.run.finish(exit_code=code)
        if self.count == 0:
            self.status.say("info", f"W&B: there is nothing new after step {self.last_step}")
        elif self.mode == "offline":
            self.status.say("info", f"W&B: recorded {self.count} steps offline; send them with: wandb sync {folder}")
        else:
            self.status.say("info", f"W&B: sent {self.count} steps; the last one is {self.last_step}")


def new_id():
    letters = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(letters) for _ in range(8))


def lock(folder):
    """One sender per run: an open file as long as it holds, None if another process is at work."""
    # A link here, in a run of somebody else, must not lead to another file.
    path = os.path.join(folder, "wandb.lock")
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        pass  # a file system without locks
    return file


def lock_in_turn(job, status):
    """A run that was resumed waits for the sender of its earlier part, which may still be at work in the background."""
    held = lock(job.folder)
    if held is None and not job.live:
        raise Problem(f"another process is sending {job.folder} already")
    if held is None:
        status.say("info", "W&B: waiting for the earlier sender of this run to end")
    while held is None:
        time.sleep(POLL_SECONDS)
        held = lock(job.folder)
    return held


def leave_current_folder():
    """wandb takes settings from wandb/settings in the current folder, and so the server that gets the key and the run. That
    folder may be somebody else's."""
    files = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC")
    for name, value in os.environ.items():
        if value and (name in files or (name.startswith("WANDB_") and name.endswith(("_DIR", "_FILE")))):
            os.environ[name] = os.path.abspath(value)
    os.chdir("/")


def follow(status):
    with os.fdopen(4, encoding="utf-8") as file:
        job = Job(**json.load(file))
    held = lock_in_turn(job, status)
    leave_current_folder()
    try:
        import wandb
    except ImportError as error:
        then = f"send the run with 'octet wandb {job.folder}'" if job.live else "repeat this command"
        raise Problem(
            f"{sys.executable} has no package wandb ({error}). Install it with '{sys.executable} -m pip install "
            f"wandb', then {then}"
        )
    control = Control()
    sender = Sender(wandb, job, status)
    sender.init()
    while not control.wait(POLL_SECONDS):
        sender.send_new()
    sender.send_new()
    if control.died and job.live:
        print("octet was killed; the run is marked as failed", file=sys.stderr)
    sender.finish(control.code)


def main():
    # A scheduler signals all processes of a job. This one ends when the run ends.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    status = Status()
    status.start_beating()
    try:
        follow(status)
    except Problem as problem:
        status.say("problem", problem)
        return 1
    except BaseException as error:
        traceback.print_exc()
        status.say("problem", f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
