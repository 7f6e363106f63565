"""Stands for the package wandb, with a server that is a folder: FAKE_WANDB has a file ID.json per run.

The folder also says how it misbehaves, by files in it:
  keep      a number: only so many steps reach the server. The rest is lost if the process is killed
  hold      finish() waits until the file is gone
  crash     the process ends in the first log()
"""
import json
import math
import os
import time

SERVER = os.environ["FAKE_WANDB"]


def told(name):
    try:
        with open(os.path.join(SERVER, name), encoding="utf-8") as file:
            return file.read() or "yes"
    except FileNotFoundError:
        return None


class Settings:
    def __init__(self, **values):
        self.values = values


class Plain:
    def __init__(self, *_, **__):
        pass


Histogram = Table = Html = Plain


class Run:
    def __init__(self, options):
        self.path = os.path.join(SERVER, options["id"] + ".json")
        self.resumed = os.path.exists(self.path)
        self.held = {"history": [], "starts": 0}
        if self.resumed:
            with open(self.path, encoding="utf-8") as file:
                self.held = json.load(file)
        self.held["starts"] += 1
        self.held.update(config=options["config"], name=options["name"], project=options["project"], exit_code=None,
                         preempting=False, cwd=os.getcwd())  # fmt: skip
        self.waiting = []  # not uploaded yet
        self.step = self.held["history"][-1]["_step"] + 1 if self.held["history"] else 0
        self.url = "fake://" + options["id"]
        self.dir = os.path.join(options["dir"], "wandb", "run-1", "files")
        self.summary = {}
        self.save()

    def save(self):
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.held, file)
        os.replace(self.path + ".tmp", self.path)

    def define_metric(self, *_, **__):
        pass

    def alert(self, **_):
        pass

    def mark_preempting(self):
        self.held["preempting"] = True

    def log(self, figures, step):
        if told("crash"):
            os._exit(3)
        if step < self.step:
            return  # as the client: steps only grow
        self.step = step
        plain = {name: value for name, value in figures.items() if not isinstance(value, Plain)}
        for name, value in plain.items():
            if isinstance(value, float) and not math.isfinite(value):
                plain[name] = str(value)  # JSON has no such number
        self.waiting.append({"_step": step, **plain})
        keep = told("keep")
        while self.waiting and (keep is None or len(self.held["history"]) < int(keep)):
            self.held["history"].append(self.waiting.pop(0))
        self.save()

    def finish(self, exit_code):
        while told("hold"):
            time.sleep(0.05)
        self.held["history"] += self.waiting
        self.held["exit_code"] = exit_code
        self.save()


def init(mode, **options):
    assert mode == "online", mode
    return Run(options)


def teardown():
    pass
