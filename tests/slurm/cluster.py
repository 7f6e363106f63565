"""A real SLURM with two nodes, which are this machine twice, for the tests of this folder.

Without SLURM's programs a test installs them; where it cannot, it is skipped (code 77). All daemons have their files in
one temporary folder and are ended by their process ids.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]
PROGRAMS = ["slurmctld", "slurmd", "munged", "sbatch", "scontrol", "scancel"]
# The controller looks at time limits so often, and warns so much earlier than it is told.
LOOKS_EVERY = 30

os.environ["PATH"] += ":/usr/sbin"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def host_name():
    return socket.gethostname().split(".")[0]


def find_programs():
    if os.geteuid() != 0:
        skip("starting SLURM needs root")
    try:
        socket.gethostbyname(host_name())
    except OSError:
        skip(f"the name of this machine, {host_name()}, cannot be resolved")
    if all(shutil.which(name) for name in PROGRAMS):
        return
    if not shutil.which("apt-get"):
        skip(f"SLURM is not installed and there is no apt-get to install {' '.join(PACKAGES)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        result = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            skip(f"apt-get {command[0]} failed: {result.stderr.strip()[-300:]}")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def configuration(folder, host, extra):
    controller, first, second = sorted(free_ports(3))
    # Ranks look for rank 0 at the name of the first node, so that one needs the name of this machine.
    return f"""
ClusterName=octet
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
{extra}
NodeName={host},{host}-2 Port=[{first},{second}] NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=500
PartitionName=all Nodes=ALL Default=YES MaxTime=10:00 State=UP OverSubscribe=YES
"""


class Cluster:
    def __init__(self, folder, extra=""):
        """`extra`: more lines for slurm.conf."""
        self.folder = folder
        self.extra = extra
        self.host = host_name()
        self.daemons = []

    def start(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (self.folder / "slurm.conf").write_text(configuration(self.folder, self.host, self.extra))
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        files = [f"--{kind}={self.folder}/munge.{kind.split('-')[0]}" for kind in
                 ("socket", "key-file", "pid-file", "log-file", "seed-file")]
        self.daemon("munged", "--foreground", "--force", *files)
        wait_for("munge's socket", lambda: (self.folder / "munge.socket").exists())
        self.started = time.monotonic()
        self.daemon("slurmctld", "-D", "-c")
        self.daemon("slurmd", "-D", "-N", self.host)
        self.daemon("slurmd", "-D", "-N", f"{self.host}-2")
        wait_for("two idle nodes", lambda: len(output("sinfo", "-h", "-N", "-t", "idle").split("\n")) == 2, 30)

    def daemon(self, *command):
        with open(self.folder / "daemons.txt", "a") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def stop(self):
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def logs(self):
        names = ["daemons.txt", "slurmctld.log", f"slurmd-{self.host}.log", f"slurmd-{self.host}-2.log", "job.txt"]
        texts = [(name, self.folder / name) for name in names]
        return "\n".join(f"--- {name}\n{path.read_text()[-3000:]}" for name, path in texts if path.exists())


def output(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def wait_for(what, condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.1)


def job_state(job):
    fields = output("scontrol", "show", "job", job, "-o").split()
    return dict(field.split("=", 1) for field in fields if "=" in field)


def losses(folder, name):
    path = folder / "runs" / name / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line)["loss"] for line in lines[:-1]]  # the last one may be half written


def run_test(test, extra=""):
    """Calls test(cluster, octet) with a running cluster. The program's argument is the path of octet."""
    octet = str(pathlib.Path(sys.argv[1]).resolve())
    find_programs()
    with tempfile.TemporaryDirectory(prefix="octet-slurm-") as name:
        cluster = Cluster(pathlib.Path(name), extra)
        try:
            cluster.start()
            test(cluster, octet)
        except BaseException:
            print(cluster.logs())
            raise
        finally:
            cluster.stop()
