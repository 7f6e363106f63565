#!/usr/bin/env python3
"""Scores the same model in the same tasks with octet and with EleutherAI's lm-evaluation-harness, question by question.

    scripts/compare_lm_eval.py --model DIR --task hellaswag=FILE.jsonl [--task ...] [--octet build/release/octet]
                               [--num_fewshot N --fewshot_dataset FILE] [--max_samples N] [--tolerance 1e-3]
                               [--device cpu|cuda] [--precision fp32|bf16|fp8] [--batch_size N] [--golden FILE]

The harness uses its own task definitions (prompts, choices, metrics) on the local files, and Transformers for the model
DIR, a Hugging Face folder with a tokenizer. octet runs `octet eval DIR --task NAME=FILE --output ...`.

Compared: the log-likelihood of every choice (largest difference, limit --tolerance), the chosen answer with and without
the normalisation by length, the accuracies and their standard errors. With bf16 or fp8 the two programs round
differently: then only the figures are printed. The times are those of scoring, without loading the model; octet's total
time is printed, too. --fewshot_dataset self takes the examples from the file of each task. --golden writes what the harness computed, for tests that run without it.

The exit code is 1 when something differs. Needs lm_eval (0.4.13), torch and transformers; runs without a network.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
try:
    import lm_eval
    import torch
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"the Python package `{error.name}` is missing: pip install lm_eval torch transformers")

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default=str(ROOT / "build/release/octet"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--num_fewshot", type=int, default=0)
    parser.add_argument("--fewshot_dataset")
    parser.add_argument("--max_samples", type=int)
    parser.add_argument("--max_length", type=int)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp8"])
    parser.add_argument("--batch_size", type=int, default=16, help="of the harness")
    parser.add_argument("--golden")
    return parser.parse_args()


def local_task(manager, name, file, example_file, cache):
    """A task of the harness that reads a local file."""
    splits = {"train": example_file, "validation": file, "test": file, "dev": example_file}
    overrides = {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": splits, "cache_dir": cache},
    }
    metrics = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]
    config = {"output_type": "multiple_choice", "validation_split": "validation", "training_split": "train",
              "doc_to_text": "{{context}}", "doc_to_choice": "endings", "doc_to_target": "label",
              "metric_list": metrics}
    if name != "multiple_choice":
        config = load_yaml(manager.task_index[name].yaml_path, resolve_func=True)
        config.pop("tag", None)
    return ConfigurableTask(config={**config, "task": name, **overrides})


def by_subject(file, folder, most=None):
    """The questions of every subject of an MMLU file, in files of their own: the harness has a task per subject.
    Of the first `most` rows alone, as octet reads them."""
    subjects = {}
    lines = [line for line in pathlib.Path(file).read_text().splitlines() if line.strip()]
    for line in lines[:most]:
        row = json.loads(line)
        if isinstance(row["answer"], str):
            row["answer"] = "ABCD".index(row["answer"])
        subjects.setdefault(row["subject"], []).append(json.dumps(row))
    pathlib.Path(folder).mkdir()
    files = {}
    for subject, lines in subjects.items():
        path = pathlib.Path(folder) / f"{pathlib.Path(file).stem}_{subject}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        files[subject] = str(path)
    return files


def example_file_of(options, file):
    return file if options.fewshot_dataset in (None, "self") else options.fewshot_dataset


def run_harness(options, model, manager, name, file, folder):
    """The questions in their order, the metrics, and the seconds."""
    example_file = example_file_of(options, file)
    if name == "mmlu":
        # In folders of their own: both may have the same name.
        files = by_subject(file, pathlib.Path(folder) / "questions", options.max_samples)
        examples = by_subject(example_file, pathlib.Path(folder) / "examples")
        if options.num_fewshot and not files.keys() <= examples.keys():
            sys.exit(f"{example_file} has no examples of {', '.join(sorted(files.keys() - examples.keys()))}")
        tasks = [local_task(manager, f"mmlu_{s}", f, examples.get(s, f), folder) for s, f in files.items()]
    else:
        tasks = [local_task(manager, name, file, example_file, folder)]
    # The harness counts the questions of each task; a subject is a task, and has its share already.
    limit = None if name == "mmlu" else options.max_samples
    start = time.time()
    results = lm_eval.simple_evaluate(
        model=model, tasks=tasks, num_fewshot=options.num_fewshot, limit=limit, bootstrap_iters=0,
        log_samples=True, verbosity="ERROR")
    seconds = time.time() - start
    questions = []
    for task in tasks:
        for sample in sorted(results["samples"][task.config.task], key=lambda s: s["doc_id"]):
            metrics = {m: bool(sample[m]) for m in ("acc", "acc_norm") if m in sample}
            questions.append({"log_likelihoods": [float(r[0]) for r in sample["filtered_resps"]], **metrics})
    scores = {}
    if len(tasks) == 1:
        found = results["results"][tasks[0].config.task]
        for key, value in found.items():
            metric = key.split(",")[0]
            if metric in ("acc", "acc_norm", "acc_stderr", "acc_norm_stderr") and value != "N/A":
                scores[metric] = float(value)
    else:
        # The harness weighs the subjects of the group by their questions.
        counts = [len(results["samples"][task.config.task]) for task in tasks]
        means = [float(results["results"][task.config.task]["acc,none"]) for task in tasks]
        scores["acc"] = sum(c * m for c, m in zip(counts, means)) / sum(counts)
    return questions, scores, seconds


def run_octet(options, name, file, folder):
    output = pathlib.Path(folder) / "answers.jsonl"
    command = [options.octet, "eval", options.model, "--task", f"{name}={file}", "--json", "--device", options.device,
               "--mixed_precision", options.precision, "--output", str(output)]
    if options.num_fewshot:
        command += ["--num_fewshot", str(options.num_fewshot)]
        if options.fewshot_dataset:
            command += ["--fewshot_dataset", example_file_of(options, file)]
    if options.max_samples:
        command += ["--max_samples", str(options.max_samples)]
    if options.max_length:
        command += ["--max_seq_length", str(options.max_length)]
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    total = time.time() - start
    if done.returncode != 0:
        sys.exit(f"octet failed ({done.returncode}): {' '.join(command)}\n{done.stderr}")
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    if name == "mmlu":  # the harness has the questions by subject
        order = {}
        for answer in answers:
            order.setdefault(answer["subject"], []).append(answer)
        answers = [answer for subject in order.values() for answer in subject]
    report = json.loads(done.stdout)
    return answers, report["results"][name], report["seconds"], total


def compare(options, name, file, model, manager, folder):
    theirs, their_scores, their_seconds = run_harness(options, model, manager, name, file, folder)
    ours, our_scores, our_seconds, total = run_octet(options, name, file, folder)
    if len(ours) != len(theirs):
        print(f"{name}: octet has {len(ours)} questions, the harness {len(theirs)}")
        return False, theirs
    largest, choices, correct = 0.0, 0, 0
    for mine, their in zip(ours, theirs):
        a, b = mine["log_likelihoods"], their["log_likelihoods"]
        largest = max([largest] + [abs(x - y) for x, y in zip(a, b)] + ([] if len(a) == len(b) else [float("inf")]))
        characters = mine["characters"]
        chosen = max(range(len(b)), key=lambda i: b[i])
        normed = max(range(len(b)), key=lambda i: b[i] / characters[i])
        same = chosen == mine["choice"] and ("acc_norm" not in their or normed == mine["choice_norm"])
        choices += same
        correct += their["acc"] == mine["correct"] and their.get("acc_norm", mine["correct_norm"]) == mine["correct_norm"]
    count = len(ours)
    print(f"{name}: {count} questions, {options.num_fewshot} examples")
    print(f"  largest difference of a log-likelihood   {largest:.3g}")
    print(f"  same choices                             {choices} of {count}")
    print(f"  same verdicts (acc, acc_norm)            {correct} of {count}")
    same_scores = True
    for metric, value in sorted(their_scores.items()):
        same_scores &= abs(our_scores[metric] - value) < 1e-9
        print(f"  {metric:16}  octet {our_scores[metric]:.6f}   harness {value:.6f}")
    print(f"  seconds           octet {our_seconds:.2f} (the whole command {total:.2f})   harness {their_seconds:.2f}")
    equal = largest <= options.tolerance and choices == count and correct == count and same_scores
    return equal or options.precision != "fp32", theirs


def main():
    options = parse_arguments()
    dtype = {"fp32": torch.float32}.get(options.precision, torch.bfloat16)
    if options.device == "cuda" and options.precision == "fp32":
        torch.backends.cuda.matmul.allow_tf32 = False
    model = HFLM(pretrained=options.model, dtype=dtype, device=options.device, batch_size=options.batch_size,
                 max_length=options.max_length)
    manager = TaskManager()
    good, golden = True, {}
    for task in options.task:
        name, _, file = task.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            equal, theirs = compare(options, name, str(pathlib.Path(file).resolve()), model, manager, folder)
        good &= equal
        golden[name] = theirs
    if options.golden:
        tasks = [f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in golden.items()]
        pathlib.Path(options.golden).write_text("{\n" + ",\n".join(tasks) + "\n}\n")
    print("equal" if good else "NOT equal")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
