"""octet submit under a real SLURM with two nodes, which are this machine twice.

    submit.py OCTET

A submitted run gets its signal before the time limit, saves, is queued again by the script, continues and ends. Array
tasks are runs with their own seeds. A cancelled job is not queued again. Odd names stay names. See cluster.py.
"""

import os
import subprocess
import time

from cluster import LOOKS_EVERY, job_state, losses, output, run_test, wait_for

RUN = """
model_preset: llama-tiny
dataset: text.txt
device: cpu
num_threads: 1
max_seq_length: 32
per_device_train_batch_size: 1
lr_scheduler_type: constant
learning_rate: 1e-3
warmup_steps: 0
eval_steps: 0
eval_batches: 1
save_steps: 0
progress: plain
"""
ODD_NAME = "odd 'name' $(touch injected) \"x\" `touch injected` \\ ;touch injected"


def submit(octet, folder, *arguments):
    result = subprocess.run([octet, "submit", "run.yaml", "--gpus_per_node", "0", *arguments], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("submitted job ")[1].split(":")[0]


def log_text(folder):
    return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted((folder / "slurm").glob("*"))
                     if path.suffix in (".out", ".err"))


def check_requeue(cluster, octet):
    """The run is stopped before its limit, queued again, and ends."""
    folder = cluster.folder
    job = submit(octet, folder, "--nodes", "2", "--time", "1:30", "--signal_seconds", "20", "--run_name", "long",
                 "--job_name", ODD_NAME, "--setup", "export OCTET_TEST_SETUP='a b'",
                 "--setup", "echo \"setup: $OCTET_TEST_SETUP\"")
    # One minute is what SLURM has; submit refuses so short a limit.
    subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=1"], check=True)
    name = output("squeue", "-h", "-j", job, "-o", "%j")
    assert name == ODD_NAME, name
    wait_for("first steps of the job", lambda: len(losses(folder, "long")) > 2)
    cancelled = submit(octet, folder, "--time", "5:00", "--run_name", "cancelled")
    array = submit(octet, folder, "--time", "5:00", "--run_name", "array", "--array", "3-4", "--max_steps", "4")

    wait_for("first steps of the job to cancel", lambda: len(losses(folder, "cancelled")) > 2)
    subprocess.run(["scancel", cancelled], check=True)
    wait_for("the tasks of the array", lambda: all(
        job_state(f"{array}_{task}").get("JobState") == "COMPLETED" for task in (3, 4)))
    for seed in (3, 4):
        assert len(losses(folder, f"array-seed{seed}")) == 4
        assert f"\nseed: {seed}\n" in (folder / "runs" / f"array-seed{seed}" / "config.yaml").read_text()
    assert losses(folder, "array-seed3") != losses(folder, "array-seed4")
    wait_for("the cancelled job to save", lambda: list((folder / "runs/cancelled").glob("checkpoints*/step_*")))

    wait_for("the job in the queue again",
             lambda: job_state(job).get("Restarts") == "1" and job_state(job).get("JobState") == "PENDING", 120)
    stopped_at = len(losses(folder, "long"))
    print(f"the script queued the job again after step {stopped_at}")
    (folder / "run.yaml").write_text(RUN + f"max_steps: {stopped_at + 5}\n")
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3seconds"], check=True)
    wait_for("the end of the job", lambda: job_state(job).get("JobState") in ("COMPLETED", "FAILED"))
    state, text = job_state(job), log_text(folder)
    assert state["JobState"] == "COMPLETED", state
    assert len(losses(folder, "long")) == stopped_at + 5
    for part in ("setup: a b", "2 ranks on 2 nodes", "started by srun", "stopped on request", "exit code 75", "resumed from",
                 "start 1, config="):
        assert part in text, f"the logs do not have '{part}'"
    assert job_state(cancelled).get("JobState") == "CANCELLED", job_state(cancelled)
    assert not (folder / "injected").exists()


def check_sweep(cluster, octet):
    """Two nodes are two agents of one sweep."""
    folder = cluster.folder
    (folder / "seeds.yaml").write_text("method: grid\nparameters: {seed: {values: [1, 2, 3, 4, 5]}}\n")
    result = subprocess.run([octet, "submit", "seeds.yaml", "--config", "run.yaml", "--gpus_per_node", "0", "--nodes", "2",
                             "--time", "5:00", "--max_steps", "3"], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    job = result.stdout.split("submitted job ")[1].split(":")[0]
    wait_for("the end of the sweep", lambda: job_state(job).get("JobState") in ("COMPLETED", "FAILED"))
    text = "".join((folder / f"slurm/seeds-{job}.{ending}").read_text() for ending in ("out", "err"))
    assert job_state(job)["JobState"] == "COMPLETED", text
    starts = [line.split()[0] for line in text.split("\n") if " of 5 starts: " in line]
    assert sorted(starts) == [f"run-{i:04}" for i in range(5)], text
    for run in starts:
        path = folder / "sweeps/seeds/runs" / run / "metrics.jsonl"
        assert len(path.read_text().splitlines()) == 3, path
    assert text.count("5 of 5 runs finished") == 2, text


def check_one_script(cluster, octet):
    """A script serves another configuration, and the agents of another sweep, as sbatch users pass them on."""
    folder = cluster.folder
    other = "configs/other 'one'.yaml"
    (folder / "configs").mkdir()
    (folder / other).write_text(RUN + "max_steps: 3\n")
    (folder / "pair.yaml").write_text("parameters: {seed: {values: [1, 2]}}\n")
    for arguments in (["run.yaml", "--output", "job.sh"],
                      ["pair.yaml", "--config", other, "--output", "sweep.sh"]):
        subprocess.run([octet, "submit", *arguments, "--gpus_per_node", "0", "--time", "5:00"], cwd=folder, check=True,
                       capture_output=True)
    jobs = [output("sbatch", "--parsable", *words) for words in (
        [f"--export=CONFIG={other}", folder / "job.sh"],
        ["--export=ALL,SWEEP_ID=mine", folder / "sweep.sh"], ["--export=ALL,SWEEP_ID=mine", folder / "sweep.sh"])]
    wait_for("the end of the jobs", lambda: all(
        job_state(job).get("JobState") in ("COMPLETED", "FAILED") for job in jobs))
    assert all(job_state(job)["JobState"] == "COMPLETED" for job in jobs), log_text(folder)
    assert len(losses(folder, f"other 'one'-{jobs[0]}")) == 3
    for index in range(2):
        assert len((folder / f"sweeps/mine/runs/run-{index:04}/metrics.jsonl").read_text().splitlines()) == 3


def check_refusal(cluster, octet):
    """What SLURM refuses is reported, and the script is kept."""
    result = subprocess.run([octet, "submit", "run.yaml", "--time", "1:00:00", "--partition", "nowhere", "--run_name", "no"],
                            cwd=cluster.folder, capture_output=True, text=True)
    assert result.returncode == 1 and "nowhere" not in result.stdout, result
    assert "sbatch refused the job" in result.stderr and "invalid partition" in result.stderr, result.stderr
    assert "the script is slurm/no.sbatch" in result.stderr and (cluster.folder / "slurm/no.sbatch").exists()


def run_jobs(cluster, octet):
    lines = [f"line {i * 7919 % 1000} of the text\n" for i in range(300)]
    (cluster.folder / "text.txt").write_text("".join(lines))
    (cluster.folder / "run.yaml").write_text(RUN + "max_steps: 100000\n")
    check_refusal(cluster, octet)
    check_sweep(cluster, octet)
    check_one_script(cluster, octet)
    # Until shortly before the controller looks at time limits, so that few steps are made before its warning.
    passed = (time.monotonic() - cluster.started) % LOOKS_EVERY
    time.sleep((LOOKS_EVERY - 16 - passed) % LOOKS_EVERY)
    try:
        check_requeue(cluster, octet)
    except BaseException:
        print(log_text(cluster.folder)[-10000:])
        raise


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    run_test(run_jobs, "SchedulerParameters=bf_interval=2")
