#!/usr/bin/env python3
"""scripts/gpu_loss_table.py with a program in octet's place: which runs it starts, repeats and compares.

    check_loss_table.py REPOSITORY
"""
import json
import pathlib
import subprocess
import sys
import tempfile

# Writes a loss that depends on the text, the precision and the seed, and a line for each of its runs. With --save_steps it is the
# beginning that others start from: it saves, and waits until it is ended.
PROGRAM = r'''#!/usr/bin/env python3
import json, pathlib, sys, time
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
seed = int(pathlib.Path(sys.argv[2]).read_text().split()[1])
run = pathlib.Path(options["--output_dir"], options["--run_name"])
run.mkdir()
text = pathlib.Path(options["--dataset"])
text = text / "train_00000.octet" if text.is_dir() else text
loss = len(text.read_text()) + (0.05 * seed if options["--mixed_precision"] == "fp8" else 0)
resumed = " resumed" if "--resume" in options and pathlib.Path(options["--resume"]).is_dir() else ""
with open(sys.argv[0] + ".runs", "a") as runs:
    runs.write(f"{options['--mixed_precision']} {seed}{resumed}{' trunk' if '--save_steps' in options else ''}\n")
if "--save_steps" in options:
    (run / "checkpoints" / f"step_{options['--save_steps']}").mkdir(parents=True)
    time.sleep(60)
steps = int(options["--max_steps"])
(run / "metrics.jsonl").write_text("".join(
    json.dumps({"step": step, "loss": 7.5, "eval_loss": loss, "tokens_per_second": 100}) + "\n" for step in range(1, steps + 1)))
'''


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        octet, text, words, results = folder / "octet", folder / "text.jsonl", folder / "tokenizer.json", folder / "losses.json"
        octet.write_text(PROGRAM)
        octet.chmod(0o755)
        text.write_text("12345")  # a loss of 5 in BF16
        words.write_text("{}")

        def table(*more, code=0, dataset=text):
            """Output, and the runs that it took."""
            runs = folder / "octet.runs"
            runs.unlink(missing_ok=True)
            command = [sys.executable, pathlib.Path(sys.argv[1], "scripts", "gpu_loss_table.py"), "gpt2", "--dataset", dataset,
                       "--tokenizer", words, "--json", results, "--octet", octet, "--steps", "10", "--settings", "bf16", "fp8", *more]
            result = subprocess.run(command, capture_output=True, text=True)
            output = result.stdout + result.stderr
            expect(f"exit code {code}", result.returncode == code, (result.returncode, output))
            return output, sorted(runs.read_text().split("\n")[:-1]) if runs.exists() else []

        def expect(what, condition, output):
            if not condition:
                sys.exit(f"FAILED: {what}\n{output}")

        output, runs = table("--seeds", "1", "3")
        expect("one run for each setting and seed", runs == ["bf16 1", "bf16 3", "fp8 1", "fp8 3"], (runs, output))
        # FP8 is 1 % and 3 % above: a mean of 2 % with a standard error of 1 %.
        expect("differences", "| fp8 | 2 | 5.1000 | +2.000 % | 1.000 % | +1.00, +3.00 | 100 |" in output, output)
        expect("the text is named", "SHA-256 5994471abb01..." in output, output)

        output, runs = table("--seeds", "1", "2", "3")
        expect("known runs are not repeated", runs == ["bf16 2", "fp8 2"], (runs, output))

        text.write_text("1234567890")
        output, runs = table("--seeds", "1")
        expect("another text of the same name is another table", runs == ["bf16 1", "fp8 1"], (runs, output))
        expect("only its own runs are compared", "| fp8 | 1 | 10.0500 | +0.500 % |" in output, output)
        expect("what is not shown is said", "6 results of " in output and "are not shown: " in output, output)
        expect("results of the first text are kept", len(json.loads(results.read_text())) == 8, results.read_text())

        words.write_text("{ }")
        output, runs = table("--seeds", "1")
        expect("another tokenizer is another table", runs == ["bf16 1", "fp8 1"], (runs, output))

        output, runs = table("--seeds", "1", "--branch", "5")
        expect("a branch starts from one run", runs == ["bf16 1 resumed", "bf16 1 trunk", "fp8 1 resumed"], (runs, output))

        prepared = folder / "prepared"
        prepared.mkdir()
        (prepared / "train_00000.octet").write_text("123")
        output, _ = table(code=2, dataset=prepared)
        expect("a folder that is no prepared dataset is refused", "has no manifest.json" in output, output)
        shards = {"shards": [{"name": "train_00000.octet", "crc32c": "e38f49cb"}]}
        (prepared / "manifest.json").write_text(json.dumps({"train": shards, "validation": {"shards": []}}))
        output, _ = table("--seeds", "1", dataset=prepared)
        expect("a prepared dataset is told by its shards", "shards e38f49cb\n" in output, output)

        octet.write_text(PROGRAM + "# another build\n")
        output, runs = table("--seeds", "1")
        expect("another program is run again", runs == ["bf16 1", "fp8 1"], (runs, output))

        before = results.read_text()
        octet.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 3\n")
        output, _ = table("--seeds", "1", code=1)
        expect("a run that fails ends the table with its error", "failed with 3:\nno memory" in output, output)
        expect("and earlier results are kept", results.read_text() == before, results.read_text())
    print("the loss table runs, keeps and compares what it should")


if __name__ == "__main__":
    main()
