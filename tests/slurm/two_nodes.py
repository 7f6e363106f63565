"""A run under a real SLURM with two nodes of two ranks, which are this machine twice.

    two_nodes.py OCTET

SLURM warns the run before its time limit. The run saves and ends with code 75. SLURM queues the job again. It continues
from the checkpoint and ends with the losses of a run that was never interrupted. See cluster.py.
"""

import secrets
import subprocess
import time

from cluster import LOOKS_EVERY, job_state, losses, output, run_test, wait_for


def training(name, steps):
    flags = {
        "model_preset": "llama-tiny", "dataset": "text.txt", "device": "cpu", "num_threads": 1, "max_seq_length": 32, "max_steps": steps,
        "per_device_train_batch_size": 1, "lr_scheduler_type": "constant", "warmup_steps": 0, "eval_steps": 0,
        "eval_batches": 1, "save_steps": 0, "progress": "plain", "run_name": name, "resume": "latest",
    }
    return ["train", *(f"--{key}={value}" for key, value in flags.items())]


def run_job(cluster, octet):
    folder = cluster.folder
    lines = [f"line {i * 7919 % 1000} of the text\n" for i in range(300)]
    (folder / "text.txt").write_text("".join(lines))
    steps_file = folder / "steps"
    steps_file.write_text("100000")
    command = " ".join([octet, *training("job", "$(cat steps)")])
    (folder / "job.sh").write_text(f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --time=1 --signal=USR1@{LOOKS_EVERY - 10} --requeue --open-mode=append
#SBATCH --output=job.txt --mem=100
cd {folder}
export OCTET_SECRET={secrets.token_hex(16)}
srun --mpi=none {command}
""")

    # Until shortly before the controller looks at time limits, so that few steps are made before its warning.
    compared = 40
    launched = subprocess.run([octet, "launch", "-n", "4", *training("whole", compared)], cwd=folder,
                              capture_output=True, text=True)
    assert launched.returncode == 0, launched.stderr
    passed = (time.monotonic() - cluster.started) % LOOKS_EVERY
    time.sleep((LOOKS_EVERY - 14 - passed) % LOOKS_EVERY)

    job = output("sbatch", "--parsable", f"--chdir={folder}", str(folder / "job.sh"))
    assert job, "sbatch refused the job"
    try:
        wait_for("first steps of the job", lambda: len(losses(folder, "job")) > 2)
        wait_for("the job in the queue again",
                 lambda: job_state(job).get("Restarts") == "1" and job_state(job).get("JobState") == "PENDING", 120)
        stopped_at = len(losses(folder, "job"))
        print(f"SLURM stopped the run after step {stopped_at} and queued it again")
        text = (folder / "job.txt").read_text()
        assert "4 ranks on 2 nodes" in text and "started by srun" in text, text[-3000:]
        assert "stopped on request" in text, text[-3000:]
        steps = stopped_at + 5
        steps_file.write_text(str(steps))
        # Not at once: a node refuses a start in the second in which it ended the job.
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3seconds"], check=True)
        wait_for("the end of the job", lambda: job_state(job).get("JobState") in ("COMPLETED", "FAILED"))
        state = job_state(job)
        assert state["JobState"] == "COMPLETED", str(state) + (folder / "job.txt").read_text()[-3000:]
    finally:
        subprocess.run(["scancel", job], capture_output=True)

    if steps > compared:
        launched = subprocess.run([octet, "launch", "-n", "4", *training("whole", steps)], cwd=folder,
                                  capture_output=True, text=True)
        assert launched.returncode == 0, launched.stderr
    found, expected = losses(folder, "job"), losses(folder, "whole")[:steps]
    assert len(found) == steps, f"{len(found)} steps, expected {steps}"
    assert found == expected, f"the losses differ: {found} and {expected}"
    print(f"the continued run has the same {steps} losses as one that was never stopped")


if __name__ == "__main__":
    run_test(run_job, "RequeueExit=75")
