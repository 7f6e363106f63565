#!/usr/bin/env python3
"""Checks that the tensorboard package reads the event files that octet writes.

Usage: check_tensorboard.py REPORT_TESTS, the program with the tests of src/report. Also checks a file that is
cut in the middle of a record, with a resumed run's file after it. Exits with 77 where tensorboard is absent.
"""
import math
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata as hparams_metadata
except ImportError as error:
    print(f"skipped: the Python package tensorboard is not installed ({error})")
    sys.exit(77)


def write_example(program: str, folder: pathlib.Path, resume: int | None = None) -> None:
    environment = dict(os.environ, OCTET_TENSORBOARD_EXAMPLE=str(folder))
    if resume is not None:
        environment["OCTET_TENSORBOARD_RESUME"] = str(resume)
    command = [program, "--gtest_filter=TensorBoard.WritesTheExampleForTheReader"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def load(folder: pathlib.Path) -> event_accumulator.EventAccumulator:
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def numbers(accumulator, tag: str) -> dict[int, float]:
    """Step to value, of a scalar in whichever form this version of tensorboard keeps it."""
    if tag in accumulator.Tags()["scalars"]:
        return {event.step: event.value for event in accumulator.Scalars(tag)}
    return {event.step: event.tensor_proto.float_val[0] for event in accumulator.Tensors(tag)}


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"check_tensorboard: {what}")


def check_whole(accumulator) -> None:
    loss = numbers(accumulator, "train/loss")
    expect(sorted(loss) == list(range(1, 21)), f"steps of train/loss are {sorted(loss)}")
    expect(all(math.isclose(loss[s], 10 / s, rel_tol=1e-6) for s in loss), f"train/loss is {loss}")
    for tag, value in [("train/lr", 6e-4), ("train/grad_norm", 0.8234), ("perf/step_ms", 156.78),
                       ("perf/tokens_per_second", 3345.67), ("train/tokens", 131072), ("train/epoch", 0.25)]:
        expect(math.isclose(numbers(accumulator, tag)[7], value, rel_tol=1e-6), f"{tag} is not {value}")
    evaluation = numbers(accumulator, "eval/loss")
    expect(sorted(evaluation) == [10, 20] and math.isnan(evaluation[10]), f"eval/loss is {evaluation}")
    expect(numbers(accumulator, "fp8/qkv/amax") == {10: 1.5, 20: 1.5}, "fp8/qkv/amax")

    sample = accumulator.Tensors("samples/0")[0].tensor_proto.string_val[0].decode()
    expect(sample == "    Once upon\n    a \ufffd time café", f"samples/0 is {sample!r}")
    text_plugin = accumulator.PluginTagToContent("text")
    expect({"samples/0", "hparams", "train/precision"} <= set(text_plugin), f"text tags: {set(text_plugin)}")
    table = accumulator.Tensors("hparams")[0].tensor_proto.string_val[0].decode()
    for row in ("| learning_rate | 0.0006 |", "| model | gpt2\\|café |"):
        expect(row in table, f"hparams is {table!r}")

    content = accumulator.PluginTagToContent("hparams")[hparams_metadata.SESSION_START_INFO_TAG]
    values = hparams_metadata.parse_session_start_info_plugin_data(content).hparams
    expect(values["learning_rate"].number_value == 6e-4 and values["max_steps"].number_value == 1000
           and values["fp8"].bool_value is True and values["model"].string_value == "gpt2|café",
           f"hparams are {values}")

    tags = accumulator.Tags()
    if "weights/qkv" in tags["histograms"]:
        histogram = accumulator.Histograms("weights/qkv")[0].histogram_value
        expect(histogram.num == 1000 and histogram.min == -500 and histogram.max == 499
               and sum(histogram.bucket) == 1000, f"histogram is {histogram}")
    else:
        expect("weights/qkv" in accumulator.PluginTagToContent("histograms"), f"no histogram in {tags}")


def main() -> int:
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_example(program, folder)
        check_whole(load(folder))

        (path,) = folder.iterdir()
        whole = path.read_bytes()
        for cut in (1, 5, 40, len(whole) // 2):  # bytes of the end that a kill took away
            path.write_bytes(whole[:-cut])
            loss = numbers(load(folder), "train/loss")
            expect(sorted(loss) == list(range(1, len(loss) + 1)) and len(loss) in range(5, 21),
                   f"with {cut} bytes cut off the steps are {sorted(loss)}")

        # Resumed from step 5: what the first run wrote of step 6 and later is replaced.
        # The new name sorts before a file that is written within the same second.
        path.rename(path.with_name(path.name.replace("tfevents.", "tfevents.0", 1)))
        write_example(program, folder, resume=6)
        loss = numbers(load(folder), "train/loss")
        expect(sorted(loss) == list(range(1, 26)), f"after the resume the steps are {sorted(loss)}")
        expect(loss[5] < 100 < loss[6], f"after the resume the losses are {loss}")
    print("check_tensorboard: tensorboard reads octet's event files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
